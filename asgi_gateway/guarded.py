"""uvicorn's HTTP protocol under the limits of the front door.

uvicorn waits for ever for the rest of a head or a body, takes heads of any size, writes a 400 over
an answer that is still owed, and makes a timer a request. Here every read that ends a request goes
one short way; one that ends in the middle of something is looked at more closely.
"""

import asyncio
from typing import Any, ClassVar, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from asgi_gateway.cycle import CycleProtocol
from asgi_gateway.frontdoor import BODY_BYTES_PER_S, FrontDoor
from asgi_gateway.gate import Gate
from asgi_gateway.refused import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    MAX_TARGET_BYTES,
    Refused,
    check_framing,
    check_head,
    check_name,
    check_trailers,
    malformed,
    refusing,
)

# What is read of a body whose answer is out; more than that ends the connection.
MAX_DISCARDED_BYTES: Final = 256 << 10

# Where a connection stands between two reads: nothing begun, in a head, in a body, not read from.
_BETWEEN: Final = 0
_HEAD: Final = 1
_BODY: Final = 2
_ENDED: Final = 3


class GuardedProtocol(CycleProtocol):
    door: ClassVar[FrontDoor]

    def __init__(self, **given: Any) -> None:
        """given: what uvicorn gives its protocols."""
        super().__init__(**given)
        self._address: str | None = None
        self._refused = False
        self._refusal: Refused | None = None
        self._phase = _BETWEEN
        self._silent = True
        # Whether its first request was by a name of ours: a browser has connections for each name.
        self._named = self.door.refused_name is None
        self._large = False
        self._head_bytes = 0
        # Of the body that is being read: bytes, framing, those since its last data, and times.
        self._received = self._framing = self._bare = 0
        self._began_at = self._heard_at = 0.0

    # --- the connection --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else None
        if not self.door.let_in(self._address):
            self._refused = True
            transport.abort()
            return
        super().connection_made(
            cast(asyncio.Transport, Gate(transport, self.loop, self.door, self))
        )
        self._phase = _HEAD
        self.door.heads[self] = self.door.now

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refused:
            return
        cast(Gate, self.transport).lost()
        super().connection_lost(exc)
        self.door.left(self, self._address)

    def data_received(self, data: bytes) -> None:
        self.door.idle.pop(self, None)
        phase, had = self._phase, 0
        if phase:
            if phase == _ENDED:
                return
            if phase == _BODY:
                had = len(self.cycle.body)
        self._large = self._head_bytes + len(data) > MAX_HEAD_BYTES
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # What follows would be in another protocol: answered as plain HTTP, it is the last.
            self.cycle.keep_alive = False
            self._leave(_ENDED)
            return
        except httptools.HttpParserError as error:
            refusal, self._refusal = self._refusal, None
            self._refuse(refusal or malformed(f"this is not HTTP/1.1: {error}"))
            return
        cycle = self.cycle
        if (
            cycle is None
            or cycle.response_complete
            or cycle.scope is not self.scope
            or phase == _HEAD
            or (cycle.more_body and phase)
        ):
            try:
                self._look(len(data), had)
            except Refused as refusal:
                self._refuse(refusal)
        elif cycle.more_body:
            # The first part of a body, as most clients send their heads by themselves.
            self._phase = _BODY
            self._received = self._framing = self._bare = 0
            self._began_at = self._heard_at = self.door.now
            self.door.bodies[self] = None
        elif phase:
            self._phase = _BETWEEN

    def pause_writing(self) -> None:
        super().pause_writing()
        cast(Gate, self.transport).watch()

    # --- from the parser -------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        headers = self.headers
        if (
            len(headers) > MAX_HEADERS
            or len(self.url) > MAX_TARGET_BYTES
            or self._large
            or self.pipeline
            or not self._named
            or not self.parser.should_keep_alive()
        ):
            self._check_head()
        super().on_headers_complete()
        # Trailers of a chunked body would be added to the headers that the application reads.
        self.headers = []
        if self._phase == _BODY:  # of the request before, which ended in this read
            self._leave(_BETWEEN)

    def _check_head(self) -> None:
        try:
            nbytes = sum([len(name) + len(value) + 4 for name, value in self.headers])
            check_head(self.url, len(self.headers), nbytes)
            if not self._named:
                check_name(self.door.refused_name, self.headers)
                self._named = True
            if self.parser.get_http_version() == "0.9":
                raise malformed("HTTP/0.9 is not spoken here")
            if len(self.pipeline) >= MAX_PIPELINED:
                raise Refused("pipelined", 400, f"over {MAX_PIPELINED} requests in advance")
        except Refused as refusal:
            self._refusal = refusal
            raise

    # --- from the cycle --------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif not self._phase:
            self.door.idle[self] = self.door.now

    # --- a read that ended in the middle ---------------------------------------------------------

    def _look(self, nbytes: int, had: int) -> None:
        """Where the connection stands, after a read of so many bytes.

        had: bytes of the body that were there before the read and are not taken yet.

        Raises:
            Refused: too much.
        """
        cycle, door = self.cycle, self.door
        if cycle is None or cycle.scope is not self.scope:
            if self._phase != _HEAD or self._silent:
                # Of a read that began with the end of another request nothing is counted.
                self._head_bytes = nbytes if self._silent else 0
                self._silent = False
                self._leave(_HEAD)
                door.heads[self] = door.now
            else:
                self._head_bytes += nbytes
            if self.scope is not None:
                check_head(self.url, len(self.headers), self._head_bytes)
        elif cycle.more_body:
            if self._phase != _BODY:
                self._leave(_BODY)
                door.bodies[self] = None
                self._received = self._framing = self._bare = 0
                self._began_at = door.now
            elif cycle.response_complete:
                if self._received + nbytes > MAX_DISCARDED_BYTES:
                    door.count("unread_body")
                    self.linger()
                    return
            else:
                data = len(cycle.body) - had
                self._framing += nbytes - data
                self._bare = 0 if data else self._bare + nbytes
                check_framing(self._framing, self._received + nbytes - self._framing)
                check_trailers(len(self.headers), self._bare)
            self._received += nbytes
            self._heard_at = door.now
        else:
            self._leave(_BETWEEN)
            if cycle.response_complete:
                door.idle[self] = door.now

    def _leave(self, phase: int) -> None:
        """Nothing that was waited for is any more."""
        self._phase = phase
        self.door.heads.pop(self, None)
        if phase != _HEAD:
            self._silent = False
            self._head_bytes = 0

    def _refuse(self, refusal: Refused) -> None:
        """End the connection, with an answer where the request at fault has none; what is owed to
        requests before it goes first."""
        self._leave(_ENDED)
        self.door.count(refusal.reason)
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope or not cycle.more_body:
            # The fault is behind the last request that came whole.
            if cycle is None or cycle.response_complete:
                self._say(refusal)
            else:
                cycle.keep_alive = False
        elif cycle.response_complete:
            self.linger()
        elif self.pipeline:
            cycle.keep_alive = False
            self.pipeline[0] = (cycle, cast(Any, refusing(refusal)))
        else:
            cycle.more_body = False
            if cycle.response_started:
                self.transport.close()
            else:
                self._say(refusal)
            cycle.disconnected = True
            cycle.message_event.set()

    def _say(self, refusal: Refused) -> None:
        reply = refusal.reply
        lines = [STATUS_LINE[reply.status]]
        for name, value in self.server_state.default_headers:
            lines += [name, b": ", value, b"\r\n"]
        size = b"content-length: %d\r\n" % len(reply.body)
        lines += [b"content-type: ", reply.content_type, b"\r\n", size]
        self.transport.write(b"".join([*lines, b"connection: close\r\n\r\n", reply.body]))
        self.linger()

    def owes_bytes(self) -> bool:
        """Whether the client is still sending, or something that it sent is not read."""
        cycle = self.cycle
        unread = self._phase == _ENDED or self.flow.read_paused
        return unread or (cycle is not None and cycle.more_body)

    def linger(self) -> None:
        """Say that nothing more comes, and read for a while what the client still sends."""
        self._leave(_ENDED)
        if not self.transport.is_closing():
            self.door.lingering[self] = self.door.now
            cast(Gate, self.transport).half_close()
            self.flow.resume_reading()

    # --- from the door ---------------------------------------------------------------------------

    def head_too_slow(self) -> None:
        if self.flow.read_paused:  # what it sent meanwhile is not read
            self.door.heads[self] = self.door.now
        elif self._silent:
            self.door.count("silent")
            self._leave(_ENDED)
            self.transport.abort()
        else:
            limit_s = self.door.limits.header_s
            self._refuse(Refused("header_timeout", 408, f"no whole head within {limit_s:g} s"))

    def idle_too_long(self) -> None:
        self.transport.close()

    def lingered(self) -> None:
        self.transport.abort()

    def look_at_body(self, now: float, passed_s: float) -> bool:
        """Whether a body was too slow. Time in which the client waits for us does not count.

        passed_s: since the last look.
        """
        if self._phase != _BODY:
            del self.door.bodies[self]
            return False
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._began_at += passed_s
            self._heard_at = now
            return False
        limits = self.door.limits
        if now - self._heard_at > limits.body_idle_s:
            text = f"no byte of the body for {limits.body_idle_s:g} s"
        elif now - self._began_at > limits.body_s + self._received / BODY_BYTES_PER_S:
            text = f"{self._received} bytes of the body in {now - self._began_at:.0f} s"
        else:
            return False
        self._refuse(Refused("body_timeout", 408, text))
        return True
