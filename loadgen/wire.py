"""HTTP/1.1 to the server: one request at a time on a connection, connections kept and reused.

What comes back is told to a function, not awaited: a future and a timer for each request would cost
as much as the request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from loadgen.outcomes import Traffic

JSON: Final = b"application/json"
PROTOBUF: Final = b"application/x-protobuf"

DROPPED: Final = 0
OVERDUE: Final = -1
ABANDONED: Final = -2
"""Statuses of requests without an answer: connection lost, own limit reached, given up by plan."""

CONNECTS_AT_ONCE: Final = 128
SWEEP_S: Final = 0.25

Done = Callable[[int, bytes, bytes], None]
"""Told status, content type and body of an answer."""

Limit = tuple[float, int]
"""So many seconds, and the status that the request then has."""


class Address(NamedTuple):
    """Where the server is and what goes before a path."""

    host: str
    port: int
    prefix: bytes


def address(url: str) -> Address:
    """Raises ValueError for what is no http URL."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{url!r}: only http://host:port is spoken here")
    return Address(parts.hostname, parts.port or 80, parts.path.rstrip("/").encode())


def headers(where: Address, api_key: str, version: str = "0.38.0") -> bytes:
    """What the SDK sends with every request, so that the server parses as much."""
    host = f"[{where.host}]" if ":" in where.host else where.host
    return (
        f" HTTP/1.1\r\nhost: {host}:{where.port}\r\naccept-encoding: gzip, deflate, zstd\r\n"
        f"user-agent: AsyncTinker/Python {version}\r\nx-stainless-lang: python\r\n"
        f"x-stainless-package-version: {version}\r\nx-stainless-os: Linux\r\n"
        "x-stainless-arch: x64\r\nx-stainless-runtime: CPython\r\n"
        "x-stainless-runtime-version: 3.11.7\r\nx-stainless-async: async:asyncio\r\n"
        "x-stainless-retry-count: 0\r\nx-stainless-read-timeout: 60\r\n"
        f"x-api-key: {api_key}\r\nx-sdk-version: {version}\r\n"
        "x-tinker-sampling-backpressure: 1\r\n"
        "x-idempotency-key: stainless-python-retry-6f1c1f3e-0b1d-4a52-9b8e-3d8f0c6a7e11\r\n"
    ).encode()


class Wire(asyncio.Protocol):
    """One connection. Busy from `ask` until the answer's function was called."""

    __slots__ = ("_body", "_done", "_kind", "_parser", "_pool", "_timer", "_traffic", "transport")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._traffic = pool.traffic
        self._done: Done | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._kind = b""
        self._body: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes, done: Done, limit: Limit | None) -> None:
        transport = self.transport
        assert transport is not None
        self._done = done
        if limit is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limit[0], self.give_up, limit[1])
        self._traffic.bytes_sent += len(request)
        transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._traffic.bytes_received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.give_up(DROPPED)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 12 and name.lower() == b"content-type":
            self._kind = value

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        parser, parts, kind = self._parser, self._body, self._kind
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        done, self._done = self._done, None
        self._body, self._kind = [], b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        status = parser.get_status_code()
        if parser.should_keep_alive() and done is not None:
            self._pool.free(self)
        else:
            self._pool.forget(self)
            if self.transport is not None:
                self.transport.close()
        if done is not None:
            done(status, kind, body)

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done, self._done = self._done, None
        if done is not None:
            done(status, b"", b"")


class Pool:
    """Connections to one server, all with one limit on how long an answer may take.

    At most `size` requests are under way, the others wait in order; 0 for no bound. Connections
    come from the source addresses in turn, where there are any.
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
        self.traffic = traffic
        self._where = where
        self._within_s = within_s
        self._size = size
        self._sources: Iterator[str | None] = cycle(sources or [None])
        self._idle: dict[Wire, None] = {}
        self._all: set[Wire] = set()
        self._waiting: deque[tuple[bytes, Done, Limit | None]] = deque()
        self._connecting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        # One limit for all, so the order of entry is the order of expiry.
        self._due: dict[Wire, float] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._lost = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<Pool {len(self._all)} open, {len(self._due)} busy, {len(self._waiting)} waiting>"

    @property
    def open(self) -> int:
        """Connections, those on their way included."""
        return len(self._all) + self._connecting

    @property
    def busy(self) -> int:
        """Requests under way or waiting for a connection."""
        return len(self._due) + len(self._waiting)

    def ask(self, request: bytes, done: Done, limit: Limit | None = None) -> None:
        """Send it as soon as there is a connection; `done` is called once, later.

        limit: one of its own, shorter than the pool's, from when it is sent.
        """
        if self._idle:
            self._start(self._idle.popitem()[0], request, done, limit)
            return
        self._waiting.append((request, done, limit))
        self._connect_some()

    def free(self, wire: Wire) -> None:
        """A connection got its answer."""
        self._due.pop(wire, None)
        if self._waiting:
            self._start(wire, *self._waiting.popleft())
        else:
            self._idle[wire] = None

    def forget(self, wire: Wire) -> None:
        """A connection is of no use any more."""
        if wire not in self._all:
            return
        self._all.discard(wire)
        self._due.pop(wire, None)
        self._lost += 1
        self._idle.pop(wire, None)
        self._connect_some()

    def close(self) -> None:
        """Abort every connection; requests under way are told nothing."""
        self._closed = True
        self._waiting.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in self._tasks:
            task.cancel()
        for wire in list(self._all):
            wire._done = None
            wire.give_up(DROPPED)

    def _start(self, wire: Wire, request: bytes, done: Done, limit: Limit | None) -> None:
        self._due[wire] = self._loop.time() + self._within_s
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        wire.ask(request, done, limit)

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._loop.time()
        late = []
        for wire, due in self._due.items():
            if due > now:
                break
            late.append(wire)
        for wire in late:
            wire.give_up(OVERDUE)
        if self._due and not self._closed:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _connect_some(self) -> None:
        """As many as wait, within the bounds of the pool and of connects at once."""
        while (
            not self._closed
            and self._connecting < min(len(self._waiting), CONNECTS_AT_ONCE)
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
            if self._waiting:
                self._waiting.popleft()[1](DROPPED, b"", b"")
            self._connect_some()
            return
        self._connecting -= 1
        self.traffic.connections += 1
        if self._lost:
            self._lost -= 1
            self.traffic.reconnects += 1
        self._all.add(wire)
        if wire.transport is None:  # lost in the same turn
            self.forget(wire)
        else:
            self.free(wire)
        self._connect_some()
