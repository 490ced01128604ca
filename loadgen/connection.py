"""One client connection: HTTP/1.1 in, answers out in the order they were asked for."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol, cast

import httptools

BACKLOG_CAP: Final = 64
"""Pipelined requests held while one is being answered; past it the socket is left unread."""

ONE_WRITE_BYTES: Final = 1 << 16
"""Up to this size, copying head and body together costs less than a second write."""

FLUSH_S: Final = 0.02
"""What was written to a reset connection has so long to go out; uvloop writes at a turn's end."""

DRIP_EVERY_S: Final = 0.1

JSON: Final = "application/json"

_HEADS: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nvary: Origin\r\n"
    for status in HTTPStatus
}
_JSON_OK: Final = (_HEADS[200] + f"content-type: {JSON}\r\ncontent-length: %d\r\n\r\n").encode()


class Request(NamedTuple):
    """One whole request. Only the headers that matter here are kept."""

    method: bytes
    path: bytes
    content_type: bytes
    request_id: str | None
    body: bytes
    keep_alive: bool
    affinity: str | None = None


class Application(Protocol):
    """What a connection needs from the server."""

    def opened(self, connection: Connection) -> None: ...
    def handle(self, connection: Connection, request: Request) -> None: ...
    def idle(self, connection: Connection) -> None: ...
    def busy(self, connection: Connection) -> None: ...
    def lost(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """Parses requests and hands them on one at a time.

    The application answers each request it is handed exactly once, now or later, with `respond`,
    `respond_half`, `respond_slowly`, `drop` or `reset`. Work is never started inside the parser's
    callbacks: an error there would look like a malformed request.
    """

    __slots__ = (
        "_affinity",
        "_application",
        "_body",
        "_broken",
        "_content_type",
        "_current",
        "_expects",
        "_parser",
        "_paused",
        "_queue",
        "_request_id",
        "_transport",
        "_url",
        "work",
    )

    def __init__(self, application: Application) -> None:
        self._application = application
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._broken = False
        self._paused = False
        self.work: object | None = None
        """The application's own mark on the request being answered."""

    def __repr__(self) -> str:
        return f"<Connection answering={self._current is not None} queued={len(self._queue)}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._application.opened(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._queue.clear()
        self._application.lost(self)

    def data_received(self, data: bytes) -> None:
        self._application.busy(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # answered as if nothing had been offered, as vLLM's server does
        except httptools.HttpParserError:
            self._broken = True
        if self._broken or len(self._queue) > BACKLOG_CAP:
            self._paused = True
            self._transport.pause_reading()
        if self._current is None:
            self.advance()

    def on_message_begin(self) -> None:
        self._url = b""
        self._content_type = b""
        self._request_id: str | None = None
        self._affinity: str | None = None
        self._expects = False
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"content-type":
                self._content_type = value
            case b"x-request-id":
                self._request_id = value.decode("latin-1")
            case b"x-session-id":
                self._affinity = value.decode("latin-1")
            case b"expect":
                self._expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        # An interim answer may not overtake the answer to an earlier request.
        if self._expects and self._current is None and not self._queue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        parts = self._body
        self._queue.append(
            Request(
                self._parser.get_method(),
                self._url.partition(b"?")[0],
                self._content_type,
                self._request_id,
                parts[0] if len(parts) == 1 else b"".join(parts),
                self._parser.should_keep_alive(),
                self._affinity,
            )
        )

    def advance(self) -> None:
        """Hand on queued requests until one is left waiting for its answer."""
        queue = self._queue
        while queue and self._current is None and not self._transport.is_closing():
            self._current = request = queue.popleft()
            self._application.handle(self, request)
        if self._current is not None or self._transport.is_closing():
            return
        if self._broken:
            self._current = Request(b"", b"", b"", None, b"", keep_alive=False)
            self.respond(400, b"Invalid HTTP request received.", "text/plain; charset=utf-8")
            return
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: str = JSON,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Answer the current request; closes if the client asked for that."""
        keep_alive = self._keep_alive
        head = self._head(status, body, content_type, headers, keep_alive=keep_alive)
        if len(body) <= ONE_WRITE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        self._answered(keep_alive=keep_alive)

    def respond_half(self, status: int, body: bytes, *, reset: bool = False) -> None:
        """Promise the whole body, send half of it and close, or reset the connection."""
        head = self._head(status, body, JSON, (), keep_alive=True)
        self._transport.write(head + body[: len(body) // 2])
        if reset:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(FLUSH_S, self.reset)
        else:
            self._current = None
            self._transport.close()

    def respond_slowly(self, status: int, body: bytes, seconds: float) -> None:
        """Send the body in pieces of one size spread over this time, unless the client leaves."""
        pieces = max(1, round(seconds / DRIP_EVERY_S))
        self._transport.write(self._head(status, body, JSON, (), keep_alive=self._keep_alive))
        self._drip(body, max(1, -(-len(body) // pieces)), seconds / pieces)

    def _drip(self, body: bytes, size: int, every_s: float) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(body[:size])
        if len(body) > size:
            loop = asyncio.get_running_loop()
            loop.call_later(every_s, self._drip, body[size:], size, every_s)
            return
        self._answered(keep_alive=self._keep_alive)
        self.advance()

    @property
    def _keep_alive(self) -> bool:
        return self._current is not None and self._current.keep_alive

    def _answered(self, *, keep_alive: bool) -> None:
        self._current = None
        if not keep_alive:
            self._transport.close()
        elif not self._queue:
            self._application.idle(self)

    def reset(self) -> None:
        """Close with RST, as a killed process's socket or a proxy out of patience does."""
        self._current = None
        raw = self._transport.get_extra_info("socket")
        if raw is not None and not self._transport.is_closing():
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def drop(self) -> None:
        """Close without an answer; what was already written still goes out."""
        self._current = None
        self._transport.close()

    def abort(self) -> None:
        """Close at once, unsent bytes included."""
        self._transport.abort()

    @staticmethod
    def _head(
        status: int,
        body: bytes,
        content_type: str,
        headers: tuple[tuple[str, str], ...],
        *,
        keep_alive: bool,
    ) -> bytes:
        if status == 200 and keep_alive and content_type is JSON:
            return _JSON_OK % len(body)
        lines = [("content-length", str(len(body))), *headers]
        if content_type:
            lines.append(("content-type", content_type))
        if not keep_alive:
            lines.append(("connection", "close"))
        text = "".join(f"{name}: {value}\r\n" for name, value in lines)
        return f"{_HEADS[status]}{text}\r\n".encode("latin-1")
