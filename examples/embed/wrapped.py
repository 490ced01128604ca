"""The gateway around another application: sampling is the gateway's, everything else the other's.

The other one stands for a training server with a lifespan, routes that return futures, a status
page and a websocket. It is written without a framework, so that nothing of ASGI is hidden; any ASGI
application can take its place. Where it is a whole Tinker API server that makes the sessions
itself, set ASGI_GATEWAY_TRAINING__EMBEDDED=true.

    ASGI_GATEWAY_UPSTREAM__URLS=http://127.0.0.1:8001 \\
        uvicorn --factory examples.embed.wrapped:create_app
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from asgi_gateway import Gateway
from asgi_gateway.configuration import load

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def create_app() -> Gateway:
    return Gateway(load().settings, inner=training_server)


async def training_server(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
    elif scope["type"] == "websocket":
        await echo(receive, send)
    else:
        await answer(scope, receive, send)


async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    """Runs within the gateway's: the gateway starts before it and stops after it."""
    await receive()
    scope["state"]["model"] = "loaded"
    await send({"type": "lifespan.startup.complete"})
    await receive()
    print("training server: stopped", flush=True)
    await send({"type": "lifespan.shutdown.complete"})


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read(receive)
    asked = json.loads(body) if body else {}
    match scope["method"], scope["path"]:
        case "GET", "/status":
            await reply(send, 200, {"model": scope["state"]["model"]})
        case "POST", "/api/v1/create_model":
            await reply(send, 200, {"request_id": "create-1"})
        case "POST", "/api/v1/forward_backward":
            await reply(send, 200, {"request_id": "forward-1"})
        case "POST", "/api/v1/retrieve_future":  # of ids that are not the gateway's
            await reply(send, 200, {"trained": asked["request_id"]})
        case _:
            await reply(send, 404, {"detail": "the training server has no such route"})


async def echo(receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] != "websocket.disconnect":
        if message["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "websocket.send", "text": message["text"]})


async def read(receive: Receive) -> bytes:
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body


async def reply(send: Send, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
