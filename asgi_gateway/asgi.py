"""The ASGI edge: types, reading a body, sending a reply."""

import functools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

import msgspec

from asgi_gateway.caller import Caller
from asgi_gateway.errors import GatewayError, TooLarge, UnsupportedEncoding

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON: Final = b"application/json"
PROTOBUF: Final = b"application/x-protobuf"
# ASGI extension of `serve`: sends a whole Reply in one call, or says by False that it did not.
REPLY: Final = "asgi_gateway.reply"
TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A whole answer. Sent with Content-Length always: the SDK takes a 400 without as noise."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Call(msgspec.Struct, gc=False):
    """One request as a handler sees it; `tail` is what the path has after the route's prefix."""

    scope: Scope
    receive: Receive
    body: bytes
    tail: str
    caller: Caller


class ClientGone(Exception):
    """The client hung up before its request was complete; nobody is there to be answered."""


EMPTY: Final = Reply(200, b"{}")


def json_reply(value: object, status: int = 200) -> Reply:
    return Reply(status, msgspec.json.encode(value))


async def read_body(scope: Scope, receive: Receive, cap_bytes: int) -> bytes:
    """The request body; stops at `cap_bytes` instead of buffering what will be refused.

    Raises:
        TooLarge: by the Content-Length before a byte is read, or as soon as the cap is passed.
        UnsupportedEncoding: a Content-Encoding other than identity; no SDK compresses these.
        ClientGone: the connection ended in the middle.
    """
    # Two comparisons for each of the SDK's 17 headers; sets, dicts and `in` all cost more.
    for name, value in scope["headers"]:
        if name == b"content-length":
            if value.isdigit() and int(value) > cap_bytes:
                raise TooLarge(f"the body has {int(value)} bytes, this route takes {cap_bytes}")
        elif name == b"content-encoding" and value.strip().lower() != b"identity":
            raise UnsupportedEncoding("send the body without Content-Encoding")
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body", False):
        if len(body) > cap_bytes:
            raise TooLarge(f"the body has {len(body)} bytes, this route takes {cap_bytes}")
        return body
    pieces, size = [body], len(body)
    while message["type"] == "http.request":
        if size > cap_bytes:
            raise TooLarge(f"the body has over {cap_bytes} bytes, this route takes {cap_bytes}")
        if not message.get("more_body", False):
            return b"".join(pieces)
        message = await receive()
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
    raise ClientGone


def replayed(body: bytes, receive: Receive) -> Receive:
    """A receive() for the next application, which gets the body that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


async def send_reply(send: Send, reply: Reply, *, close: bool = False) -> None:
    headers = [*_headers(reply.content_type, len(reply.body)), *reply.headers]
    if close and (b"connection", b"close") not in reply.headers:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def unless_unknown(send: Send, reply: Reply) -> Send:
    """A send() that passes every answer on but a 404, in whose place it sends `reply`."""
    unknown = False

    async def send_or_reply(message: Message) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start" and message["status"] == 404:
            unknown = True
        elif not unknown:
            await send(message)
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            await send_reply(send, reply)

    return send_or_reply


@functools.lru_cache(maxsize=256)
def _headers(content_type: bytes, size: int) -> tuple[tuple[bytes, bytes], ...]:
    """Most answers have one of a few sizes."""
    return (b"content-type", content_type), (b"content-length", b"%d" % size)


def error_reply(error: GatewayError) -> Reply:
    """The HTTP form of an error at the door; the SDK shows `detail` to its user."""
    body = msgspec.json.encode({"detail": str(error)})
    headers = error.headers
    if error.retry_after_s is not None:
        headers = (*headers, (b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    return Reply(error.status, body, JSON, headers)


def path_below_root(scope: Scope) -> str:
    """The path as the gateway's table knows it: without `root_path`, at a segment boundary."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root:
        return path
    root = root.rstrip("/")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
        return path[len(root) :] or "/"
    return path


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header called `name` (lower case)."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None
