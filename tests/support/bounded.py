"""Applications and requests for what the front door of `serve` bounds."""

from asgi_gateway.asgi import Receive, Scope, Send
from tests.support.raw_http import request

SHORT_S = 0.3
LONG = request(b"Content-Length: 1000000", method=b"POST")
CHUNKED = request(b"Transfer-Encoding: chunked", method=b"POST")


async def answer(send: Send, body: bytes = b"ok") -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def prompt(_: Scope, __: Receive, send: Send) -> None:
    """Answers without reading."""
    await answer(send)


async def reading(_: Scope, receive: Receive, send: Send) -> None:
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await answer(send, b"%d" % size)
