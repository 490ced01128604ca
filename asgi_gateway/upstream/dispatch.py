"""The waiting line in front of the connection budget.

A queued sample is an entry in a deque and nothing else: no task, no timer, no event. When a
connection is free and the answer has room, it becomes RUNNING and gets its one exchange.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Final

from asgi_gateway.clock import Clock
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import QUEUED
from asgi_gateway.turns import PerTurn
from asgi_gateway.upstream.exchange import Exchange, Transport

# So many settled records in line are not worth a walk along it.
SETTLED_IN_LINE: Final = 1024
# Bounds a turn of the event loop: requests that start together are mostly answered together. 2,048
# of them made a turn of 0.3 s and more, in which nobody else is served.
STARTS_PER_TURN: Final = 32

Begin = Callable[[Record], Exchange]


class Dispatch:
    """Starts queued records within `max_connections`.

    begin: sends a RUNNING record upstream; whoever it belongs to calls `ended` when it is over.
    """

    def __init__(
        self,
        store: MemoryStore,
        clock: Clock,
        transport: Transport,
        max_connections: int,
        begin: Begin,
    ) -> None:
        self._store = store
        self._clock = clock
        self._transport = transport
        self._max_connections = max_connections
        self._begin = begin
        self._waiting: deque[Record] = deque()
        self._delayed: list[tuple[float, int, Record]] = []
        self._order = itertools.count()
        self._running: dict[Record, Exchange] = {}
        self._closed = False
        self._turn = PerTurn(STARTS_PER_TURN, self.pump)
        # The head of the line that waits for bytes and not for a connection, and since when.
        self._blocked: Record | None = None
        self._blocked_since = 0.0

    def __repr__(self) -> str:
        return (
            f"<Dispatch {len(self._running)} running, {len(self._waiting)} waiting,"
            f" {len(self._delayed)} delayed>"
        )

    @property
    def running(self) -> int:
        return len(self._running)

    def enqueue(self, record: Record, *, first: bool = False) -> None:
        """Put a QUEUED record in line, at its end or, to be tried again at once, at its head."""
        if first:
            self._waiting.appendleft(record)
        else:
            self._waiting.append(record)
        self.pump()

    def enqueue_later(self, record: Record, not_before: float) -> None:
        """Put a QUEUED record in line at a time of the monotonic clock, by the next tick after."""
        heapq.heappush(self._delayed, (not_before, next(self._order), record))

    def tick(self, now: float) -> None:
        """Let the delayed whose time has come join the line, and those leave it that are settled.

        pump() drops only what has come to the head: with every connection busy, sessions that come
        and go would make the line longer than `store.max_in_flight` allows samples.
        """
        while self._delayed and self._delayed[0][0] <= now:
            self._waiting.append(heapq.heappop(self._delayed)[2])
        if len(self._waiting) > 2 * self._store.counts[QUEUED] + SETTLED_IN_LINE:
            self._waiting = deque(r for r in self._waiting if r.state is QUEUED)
        self.pump()

    def pump(self) -> None:
        """Start waiting records while connections and bytes last, at most so many in one turn."""
        while self._waiting and len(self._running) < self._max_connections and not self._closed:
            record = self._waiting[0]
            if record.state is not QUEUED:  # cancelled or evicted while it waited
                self._waiting.popleft()
                continue
            if not self._store.has_room(record):
                if self._blocked is not record:
                    self._blocked, self._blocked_since = record, self._clock.now()
                return
            self._blocked = None
            if not self._turn.take():
                return
            self._waiting.popleft()
            if self._store.start(record, self._clock.now()):
                self._running[record] = self._begin(record)

    def runs(self, record: Record, exchange: Exchange) -> bool:
        """Whether an exchange was neither ended nor aborted."""
        return self._running.get(record) is exchange

    def blocked(self, now: float, for_s: float) -> Record | None:
        """The head of the line, if it has waited for bytes at least so long.

        One that was cancelled or evicted meanwhile needs no room; the next begins its own wait.
        """
        record = self._blocked
        if record is None or now - self._blocked_since < for_s:
            return None
        self._blocked = None
        return record if record.state is QUEUED else None

    def ended(self, record: Record, exchange: Exchange) -> None:
        """An exchange is over: its connection is free for the next in line."""
        # A record that went back in line in its last step may be running again already.
        if self._running.get(record) is exchange:
            del self._running[record]
        self.pump()

    def abort(self, record: Record) -> bool:
        """End the upstream request of a record, if it has one; the record is settled elsewhere."""
        exchange = self._running.pop(record, None)
        if exchange is None:
            return False
        self._transport.abort(exchange)
        self.pump()
        return True

    def close(self) -> None:
        """Start nothing more, abort what runs."""
        self._closed = True
        for exchange in self._running.values():
            self._transport.abort(exchange)
        self._running.clear()
        self._waiting.clear()
        self._delayed.clear()
