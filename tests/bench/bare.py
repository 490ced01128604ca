"""The process of `asgi-gateway serve` around an application that is empty.

    python -m tests.bench.bare UPSTREAM SIZES

It listens, accepts and collects garbage exactly as the gateway does, because everything but the
application is the gateway. It reads the body of a request and answers 200; SIZES is a JSON object,
path -> bytes of its answer.
"""

import sys
from typing import Final
from unittest import mock

import msgspec

from asgi_gateway.__main__ import main
from asgi_gateway.asgi import Receive, Scope, Send
from asgi_gateway.standalone import Standalone

_CONTENT_TYPE: Final = (b"content-type", b"application/json")


def empty(sizes: dict[str, int]) -> type[Standalone]:
    """A gateway that answers every request at once, those of other paths with nothing."""
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

    class Empty(Standalone):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await super().__call__(scope, receive, send)
                return
            while (await receive()).get("more_body", False):
                pass
            start, body = answers.get(scope["path"], answers[""])
            await send(start)
            await send(body)

    return Empty


if __name__ == "__main__":
    sizes = msgspec.json.decode(sys.argv[2], type=dict[str, int])
    with mock.patch("asgi_gateway.serve.Standalone", empty(sizes)):
        sys.exit(main(["serve", "--port", "0", "--upstream", sys.argv[1]]))
