"""HTTP/1.1 to the server: one request at a time on a connection, connections kept and reused.

What comes back is told to a function, not awaited, and limits are looked after once a second: a
future and a timer for each request would cost as much as the request. The head of an answer is
parsed once for all answers that have the same; servers write the same one again and again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import ClassVar, Final, cast

import httptools

from loadgen.address import Address
from loadgen.heads import NO_HEAD, Head, Message
from loadgen.outcomes import Traffic

JSON: Final = b"application/json"
PROTOBUF: Final = b"application/x-protobuf"

DROPPED: Final = 0
OVERDUE: Final = -1
ABANDONED: Final = -2
"""Statuses of requests without an answer: connection lost, own limit reached, given up by plan."""

CONNECTS_AT_ONCE: Final = 128
SWEEP_S: Final = 0.25
HEADS_CAP: Final = 4096

now: Final = time.monotonic

Done = Callable[[int, bytes, bytes], None]
"""Told status, content type and body of an answer."""

Limit = tuple[float, int]
"""So many seconds, and the status that the request then has."""


class Wire(asyncio.Protocol):
    """One connection. Busy from its request until the answer's function was called."""

    __slots__ = ("_message", "_pool", "done", "sent", "timer", "transport")

    _heads: ClassVar[dict[bytes, Head]] = {}

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._message: Message | None = None
        self.done: Done | None = None
        self.sent = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        pool = self._pool
        size = len(data)
        pool.received += size
        if self._message is None and self.done is not None:
            head = pool.last
            if size != head.size or not data.startswith(head.data):
                end = data.find(b"\r\n\r\n") + 4
                known = self._heads.get(data[:end])
                if known is None or known.size != size:
                    self._message = Message()
                    self._parse(data)
                    return
                head = pool.last = known
            done, self.done = self.done, None
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None
            pool.idle.append(self)
            if pool.waiting:
                pool.ask(*pool.waiting.popleft())
            done(head.status, head.kind, data[head.end :])
            return
        if self._message is None:
            self._message = Message()
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Piece by piece, or a head that was not met before."""
        message = self._message
        assert message is not None
        try:
            message.parser.feed_data(data)
        except httptools.HttpParserError:
            self.give_up(DROPPED)
            return
        head = message.head
        if head is not None:
            self._message = None
            body = message.parts[0] if len(message.parts) == 1 else b"".join(message.parts)
            end = data.find(b"\r\n\r\n") + 4
            if head.kept and message.length == len(body) and len(data) == end + len(body):
                if len(self._heads) >= HEADS_CAP:
                    self._heads.clear()
                head.data, head.end, head.size = data[:end], end, len(data)
                self._heads[head.data] = head
            self._answered(head, body)

    def _answered(self, head: Head, body: bytes) -> None:
        done, self.done = self.done, None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if head.kept and done is not None:
            self._pool.free(self)
        else:
            self._pool.forget(self)
            if self.transport is not None:
                self.transport.close()
        if done is not None:
            done(head.status, head.kind, body)

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        self._end(DROPPED)

    def give_up(self, status: int) -> None:
        """Close at once; a request under way is told the status."""
        if self.transport is not None:
            self.transport.abort()
        self._end(status)

    def _end(self, status: int) -> None:
        self._pool.forget(self)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        done, self.done = self.done, None
        if done is not None:
            done(status, b"", b"")


class Pool:
    """Connections to one server, all with one limit on how long an answer may take.

    At most `size` requests are under way, the others wait in order; 0 for no bound. Connections
    come from the source addresses in turn, where there are any. `idle`, `waiting`, `received`
    and `last` are for the connections.
    """

    def __init__(
        self,
        where: Address,
        traffic: Traffic,
        *,
        within_s: float,
        size: int = 0,
        sources: Sequence[str] = (),
    ) -> None:
        self.sent = 0
        self.received = 0
        self.last = NO_HEAD
        self._traffic = traffic
        self._where = where
        self._within_s = within_s
        self._size = size
        self._sources: Iterator[str | None] = cycle(sources or [None])
        self.idle: list[Wire] = []
        self._all: dict[Wire, None] = {}
        self.waiting: deque[tuple[bytes, Done, Limit | None]] = deque()
        self._connecting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._clock = now()  # as of the last sweep, which is near enough for limits
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def __repr__(self) -> str:
        return f"<Pool {len(self._all)} open, {len(self.waiting)} waiting>"

    @property
    def open(self) -> int:
        """Connections, those on their way included."""
        return len(self._all) + self._connecting

    def ask(self, request: bytes, done: Done, limit: Limit | None = None) -> None:
        """Send it as soon as there is a connection; `done` is called once, later.

        limit: one of its own, shorter than the pool's, from when it is sent.
        """
        idle = self.idle
        while idle:
            wire = idle.pop()
            transport = wire.transport
            if transport is not None and not transport.is_closing():
                wire.done = done
                wire.sent = self._clock
                if limit is not None:
                    wire.timer = self._loop.call_later(limit[0], wire.give_up, limit[1])
                self.sent += len(request)
                transport.write(request)
                return
        self.waiting.append((request, done, limit))
        self._connect_some()

    def free(self, wire: Wire) -> None:
        """A connection got its answer."""
        self.idle.append(wire)
        if self.waiting:
            self.ask(*self.waiting.popleft())

    def forget(self, wire: Wire) -> None:
        """A connection is of no use any more."""
        if wire in self._all:
            del self._all[wire]
            self._lost += 1
            self._connect_some()

    def close(self) -> None:
        """Abort every connection; requests under way are told nothing."""
        self._closed = True
        self.waiting.clear()
        self._sweeper.cancel()
        for task in self._tasks:
            task.cancel()
        for wire in list(self._all):
            wire.done = None
            wire.give_up(DROPPED)

    def _sweep(self) -> None:
        self._clock = now()
        latest = self._clock - self._within_s
        for wire in [each for each in self._all if each.done is not None and each.sent < latest]:
            wire.give_up(OVERDUE)
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _connect_some(self) -> None:
        """As many as wait, within the bounds of the pool and of connects at once."""
        while (
            not self._closed
            and self._connecting < min(len(self.waiting), CONNECTS_AT_ONCE)
            and (not self._size or len(self._all) + self._connecting < self._size)
        ):
            self._connecting += 1
            task = self._loop.create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        source = next(self._sources)
        wire = Wire(self)
        try:
            await self._loop.create_connection(
                lambda: wire,
                self._where.host,
                self._where.port,
                local_addr=None if source is None else (source, 0),
            )
        except OSError:
            self._connecting -= 1
            if self.waiting:
                self.waiting.popleft()[1](DROPPED, b"", b"")
            self._connect_some()
            return
        self._connecting -= 1
        self._traffic.connections += 1
        if self._lost:
            self._lost -= 1
            self._traffic.reconnects += 1
        self._all[wire] = None
        if wire.transport is None:  # lost in the same turn
            self.forget(wire)
        else:
            self.free(wire)
        self._connect_some()
