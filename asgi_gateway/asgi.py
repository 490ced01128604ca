"""The ASGI edge: types, reading a body, sending a reply, and telling whether a client is there."""

import asyncio
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from asgi_gateway.errors import GatewayError, TooLarge, UnsupportedEncoding

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON: Final = b"application/json"
PROTOBUF: Final = b"application/x-protobuf"
TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"

# A server that keeps handing out messages which mean nothing to us is taken as "cannot tell".
_MAX_IDLE_MESSAGES: Final = 8


class Reply(NamedTuple):
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


class ClientGone(Exception):
    """The client hung up before its request was complete; nobody is there to be answered."""


EMPTY: Final = Reply(200, b"{}")


def json_reply(value: object) -> Reply:
    return Reply(200, msgspec.json.encode(value))


async def read_body(scope: Scope, receive: Receive, cap_bytes: int) -> bytes:
    """The request body; stops at `cap_bytes` instead of buffering what will be refused.

    Raises:
        TooLarge: by the Content-Length before a byte is read, or as soon as the cap is passed.
        UnsupportedEncoding: a Content-Encoding other than identity; no SDK compresses these.
        ClientGone: the connection ended in the middle.
    """
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
            raise TooLarge(f"the body has over {cap_bytes} bytes, this route takes {cap_bytes}")
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
    headers = [
        (b"content-type", reply.content_type),
        (b"content-length", b"%d" % len(reply.body)),
        *reply.headers,
    ]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def error_reply(error: GatewayError) -> Reply:
    """The HTTP form of an error at the door; the SDK shows `detail` to its user."""
    body = msgspec.json.encode({"detail": str(error)})
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.retry_after_s is not None:
        headers = ((b"retry-after", b"%d" % max(1, round(error.retry_after_s))),)
    return Reply(error.status, body, JSON, headers)


def path_below_root(scope: Scope) -> str:
    """The path as the gateway's table knows it: without `root_path`, at a segment boundary."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
        return path[len(root) :] or "/"
    return path


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header called `name` (lower case)."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


class Waker:
    """What a parked poll sleeps on; anything that ends the poll wakes it, once is enough."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def woken(self) -> bool:
        return self.future.done()

    def wake(self, _: object = None) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Peer:
    """The client behind one request, as far as ASGI lets it be seen.

    Sending to a client that has gone raises nowhere, so whether an answer was delivered must be
    decided before it is sent. The one sign is `http.disconnect` from `receive()`, which uvicorn
    gives as often as it is asked (also after every complete answer), hypercorn once only, and
    granian through a future of its own. So one `receive()` is kept pending and driven by hand in
    the handler's own task: a task per parked poll would cost 38% CPU and 1.7 KiB more.

    Where `receive` belongs to an object that says itself whether the client has gone, as uvicorn's
    request cycle does, it is asked only by polls that are parked.
    """

    __slots__ = ("_coroutine", "_future", "_receive", "_unsure", "gone")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._coroutine: Coroutine[Any, Any, Message] | None = None
        self._future: Any = None
        self._unsure = False
        self.gone = False

    def seen_open(self) -> bool:
        """Whether the client is there now. In doubt it is not, and its result is kept longer."""
        if not self.gone:
            disconnected = getattr(getattr(self._receive, "__self__", None), "disconnected", None)
            if disconnected is False or disconnected is True:
                self.gone = disconnected
                return not disconnected
        asked = self.gone or self._unsure or self._future is not None
        if not asked and isinstance(self._receive, types.BuiltinMethodType):
            return True  # granian, not parked: its future never tells at once, so take it as open
        self._look()
        return not self.gone and not self._unsure

    def watch(self, waker: Waker) -> None:
        """Have `waker` woken when the client hangs up, or at once if it already has."""
        self._look()
        if self.gone:
            waker.wake()
        elif self._future is not None:
            self._future.add_done_callback(waker.wake)

    def close(self) -> None:
        """Let go of the pending receive()."""
        coroutine, future = self._coroutine, self._future
        self._coroutine = self._future = None
        if coroutine is not None:
            # A foreign receive() may await or fail while it is closed; the answer goes out anyway.
            try:  # noqa: SIM105 - suppress() costs as much as the rest of this
                coroutine.close()
            except Exception:  # noqa: BLE001
                pass
        elif future is not None:
            future.cancel()

    def _look(self) -> None:
        """Advance the pending receive() until it waits, or the client is known to be gone."""
        for _ in range(_MAX_IDLE_MESSAGES):
            if self.gone or self._unsure:
                return
            if self._future is not None and not self._future.done():
                return
            try:
                message = self._next()
            except Exception:  # noqa: BLE001 - a server's own error: the client cannot be seen
                self._coroutine = self._future = None
                self._unsure = True
                return
            if message is None:
                continue
            self._future = None
            if message["type"] == "http.disconnect":
                self.gone = True
        else:
            self._unsure = self._future is None or self._future.done()

    def _next(self) -> Message | None:
        """One step: a message, or None when the receive() went on waiting."""
        if self._coroutine is None:
            if self._future is not None:  # granian's own future, done
                return self._future.result()  # type: ignore[no-any-return]
            awaitable = self._receive()
            if not inspect.iscoroutine(awaitable):
                if not hasattr(awaitable, "add_done_callback"):
                    raise TypeError("receive() gave neither a coroutine nor a future")
                self._future = awaitable
                return None
            self._coroutine = awaitable
        try:
            future = self._coroutine.send(None)
        except StopIteration as stop:
            self._coroutine = None
            return stop.value  # type: ignore[no-any-return]
        # What Task does with a yielded future; anything else cannot be waited on here.
        future._asyncio_future_blocking = False
        self._future = future
        return None
