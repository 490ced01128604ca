"""uvicorn's HTTP protocol with less work between a request's head and the application.

The server is most of what a sample costs. Here nothing has an `asyncio.Event` (a deque of 624
bytes), no copy of a body that came in one piece, no callback when its task ends, and no second look
at a target that was parsed before. An application that has its whole answer hands it over in one
call, by the extension REPLY: `send` takes two messages and regular expressions for their headers.
"""

import asyncio
import functools
import urllib.parse
from collections.abc import Callable
from typing import Any, Final

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from asgi_gateway.asgi import REPLY, Message, Reply
from asgi_gateway.onewrite import OneWrite

# A target is remembered if it is no longer, and so many of them: every client has the same few, and
# those that name a session are longer.
_MAX_TARGET_BYTES: Final = 40
_MAX_TARGETS: Final = 64
# Heads of answers, by size: most are of a few sizes.
_MAX_HEADS: Final = 256


class Arrival:
    """What `asyncio.Event` is used for here, at a tenth of its size."""

    __slots__ = ("_loop", "_waiting", "is_set")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[asyncio.Future[None]] | None = None
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def clear(self) -> None:
        self.is_set = False

    async def wait(self) -> None:
        if not self.is_set:
            future = self._loop.create_future()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(future)
            await future


class Flow(FlowControl):
    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        # In the place of uvicorn's, as above.
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._is_writable_event: Arrival = Arrival(loop)  # type: ignore[assignment]
        self._is_writable_event.set()


class Rendered:
    """The server's own headers (Date) as they go into each answer: a new list every second."""

    __slots__ = ("_of", "_text")

    def __init__(self) -> None:
        self._of: list[tuple[bytes, bytes]] | None = None
        self._text = b""

    def of(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        if headers is not self._of:
            self._of, self._text = headers, b"".join([b"%b: %b\r\n" % each for each in headers])
        return self._text


class Cycle(RequestResponseCycle):
    """One request and its answer."""

    # Where every request begins; uvicorn sets each of them for each request.
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = 0
    access_log = False
    _rendered: Final = Rendered()

    def __init__(self, protocol: "CycleProtocol", keep_alive: bool) -> None:
        # uvicorn's own, with twelve arguments by name, is not called: these are its attributes.
        self.loop = protocol.loop
        self.state = protocol.server_state
        self.scope = protocol.scope
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.logger = protocol.logger
        self.default_headers = self.state.default_headers
        self.message_event: Arrival = Arrival(protocol.loop)  # type: ignore[assignment]
        self.on_response: Callable[[], None] = protocol.on_response_complete
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = protocol.expect_100_continue
        self.body: bytes | bytearray = b""  # type: ignore[assignment]
        self.scope["extensions"] = {REPLY: self.reply}  # type: ignore[dict-item]

    async def run_asgi(self, app: Any) -> None:
        try:
            await app(self.scope, self.receive, self.send)
            if not self.response_complete and not self.disconnected:
                raise RuntimeError("the application ended without the end of an answer")
        except BaseException:
            self.logger.exception("the application failed")
            if self.response_started:
                self.transport.close()
            else:
                await self.send_500_response()
        finally:
            # Nothing of a finished request holds another part of it: no work for the collector.
            self.on_response = _nothing
            self.scope["extensions"] = {}
            self.state.tasks.discard(asyncio.current_task(self.loop))

    async def receive(self) -> Message:  # type: ignore[override]
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            if self.flow.read_paused:
                self.flow.resume_reading()
            arrived = self.message_event
            if not arrived.is_set:
                await arrived.wait()
            arrived.is_set = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def reply(self, reply: Reply) -> bool:
        """Send a whole answer. False where nothing was sent, and `send` is to do it: to a client
        that does not take what is written, at the end of a connection, with headers of its own."""
        if (
            self.response_started
            or not self.keep_alive
            or reply.headers
            or self.flow.write_paused
            or self.scope["method"] == "HEAD"
        ):
            return False
        if self.disconnected:
            return True
        body = reply.body
        head = _head(reply.content_type, len(body))
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.message_event.set()
        transport: OneWrite = self.transport  # type: ignore[assignment]
        transport.write_now(
            STATUS_LINE[reply.status], self._rendered.of(self.state.default_headers), head, body
        )
        self.on_response()
        return True


class CycleProtocol(HttpToolsProtocol):
    """Heads and bodies of requests. The transport is a OneWrite, and uvicorn's settings those of
    `serve`: no limit_concurrency, no root_path, no access log, no WebSockets."""

    cycle: Cycle
    # The request that is being answered; `cycle` is the last one that came.
    running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        running = self.running
        # uvicorn tells the last one only: a poll before it would be held, and its answer counted.
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        parser, scope = self.parser, self.scope
        version = parser.get_http_version()
        if version != "1.1":
            scope["http_version"] = version
        scope["method"] = parser.get_method().decode("ascii")
        url = self.url
        target = _parsed(url) if len(url) > _MAX_TARGET_BYTES else _known(url)
        scope["path"], scope["raw_path"], scope["query_string"] = target
        last = self.cycle
        self.cycle = cycle = Cycle(self, version != "1.0" and parser.should_keep_alive())
        if last is None or last.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = cycle
        self.tasks.add(self.loop.create_task(cycle.run_asgi(app)))

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            return
        if not cycle.body:
            cycle.body = body
        else:
            if type(cycle.body) is bytes:
                cycle.body = bytearray(cycle.body)
            cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        # Also of a request that was answered before its end, unlike uvicorn.
        cycle = self.cycle
        cycle.more_body = False
        cycle.message_event.set()


def _parsed(url: bytes) -> tuple[str, bytes, bytes]:
    """Path, raw path and query of a request's target.

    Raises:
        httptools.HttpParserInvalidURLError: it is none.
    """
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    if "%" in path:
        path = urllib.parse.unquote(path)
    return path, parsed.path, parsed.query or b""


_known = functools.lru_cache(maxsize=_MAX_TARGETS)(_parsed)


@functools.lru_cache(maxsize=_MAX_HEADS)
def _head(content_type: bytes, size: int) -> bytes:
    return b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (content_type, size)


def _nothing() -> None:
    pass
