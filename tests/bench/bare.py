"""An ASGI server around an application that is empty: what a request costs without a gateway.

    python -m tests.bench.bare uvicorn|serve UPSTREAM SIZES

`uvicorn` is the server as it comes, with uvloop, httptools and no access log. `serve` is the
process of `asgi-gateway serve`: it listens, accepts and collects garbage as the gateway does,
because all but the application is the gateway. The application reads the body of a request and
answers 200; SIZES is a JSON object, path -> bytes of its answer.
"""

import socket
import sys
from typing import Final
from unittest import mock

import msgspec
import uvicorn

from asgi_gateway.__main__ import main
from asgi_gateway.asgi import App, Receive, Scope, Send
from asgi_gateway.standalone import Standalone

_CONTENT_TYPE: Final = (b"content-type", b"application/json")
# For 16,384 connections that come at once and are idle while other rows are measured.
_BACKLOG: Final = 65_535
_KEEPALIVE_S: Final = 600


def empty(sizes: dict[str, int]) -> App:
    """Answers every request at once, those of other paths with nothing."""
    answers = {
        path: (
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [_CONTENT_TYPE, (b"content-length", b"%d" % size)],
            },
            {"type": "http.response.body", "body": bytes(size)},
        )
        for path, size in {"": 0, **sizes}.items()
    }

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        start, body = answers.get(scope["path"], answers[""])
        await send(start)
        await send(body)

    return app


def in_uvicorn(app: App) -> None:
    """Serves until it is killed."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=_KEEPALIVE_S,
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    print(f"asgi-gateway listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run([listener])


def in_serve(app: App, upstream: str) -> int:
    class Empty(Standalone):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await app(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)

    with mock.patch("asgi_gateway.serve.Standalone", Empty):
        return main(["serve", "--port", "0", "--upstream", upstream])


if __name__ == "__main__":
    server, upstream, sizes = sys.argv[1:]
    application = empty(msgspec.json.decode(sizes, type=dict[str, int]))
    if server == "serve":
        sys.exit(in_serve(application, upstream))
    in_uvicorn(application)
