"""The waiting line in front of the connection budget.

A queued sample is an entry in a deque and nothing else: no task, no timer, no event. When a
connection is free and the answer has room, it becomes RUNNING and gets its one exchange.
"""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from asgi_gateway.clock import Clock
from asgi_gateway.metrics import Metrics
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record
from asgi_gateway.store.shortage import Shortage
from asgi_gateway.store.states import QUEUED
from asgi_gateway.turns import PerTurn
from asgi_gateway.upstream.exchange import Exchange, Transport
from asgi_gateway.upstream.retrying import Repeats, RetryBudget

# So many settled records in line are not worth a walk along it.
SETTLED_IN_LINE: Final = 1024
# Bounds a turn of the event loop: requests that start together are mostly answered together. 2,048
# of them made a turn of 0.3 s and more, in which nobody else is served.
STARTS_PER_TURN: Final = 32
# Samples that have waited in vain and are given back in one tick.
GIVEN_UP_PER_TICK: Final = 128

Begin = Callable[[Record], Exchange]


class Upstreams(Protocol):
    """available: those that a sample may go to now; while there are none the line is held."""

    @property
    def available(self) -> Sequence[Any]: ...


class Dispatch:
    """Starts queued records within `max_connections`: those that were upstream before as their
    budget allows, then the others.

    begin: sends a RUNNING record upstream; whoever it belongs to calls `ended` when it is over.
    freed: told of every exchange that is over, before its connection is given to the next.
    give_back: settles a QUEUED record that has waited in vain to be sent again.
    """

    def __init__(
        self,
        store: MemoryStore,
        clock: Clock,
        transport: Transport,
        max_connections: int,
        begin: Begin,
        *,
        upstreams: Upstreams,
        budget: RetryBudget,
        repeats: Repeats,
        freed: Callable[[Any], None],
        give_back: Callable[[Record], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._transport = transport
        self._max_connections = max_connections
        self._begin = begin
        self._upstreams = upstreams
        self._budget = budget
        self._sent = budget.sent
        self._repeats = repeats
        self._ready = repeats.ready
        self._freed = freed
        self._give_back = give_back
        self._waiting: deque[Record] = deque()
        self._running: dict[Record, Exchange] = {}
        self._closed = False
        # While this machine lacks something for a connect, until then nothing is started.
        self._shut_until = 0.0
        self._turn = PerTurn(STARTS_PER_TURN, self.pump)
        # The head of the line that waits for bytes and not for a connection, and since when.
        self._blocked: Record | None = None
        self._shortage = Shortage()
        # Repeats that had to wait for their budget, and how many of those that are ready are such.
        self.delayed = 0
        self._held = 0

    def __repr__(self) -> str:
        return (
            f"<Dispatch {len(self._running)} running, {len(self._waiting)} waiting,"
            f" {self._repeats!r}>"
        )

    def reconfigure(self, max_connections: int, grace_s: float) -> None:
        """Other limits: what runs beyond them finishes. More of it is used from the next pump."""
        self._max_connections = max_connections
        self._repeats.grace_s = grace_s

    @property
    def running(self) -> int:
        return len(self._running)

    def add_to(self, metrics: Metrics) -> None:
        metrics.counter(
            "retries_delayed_total",
            "Samples whose next try waited because upstream.retry_budget was used up.",
            lambda: self.delayed,
        )
        metrics.gauge(
            "upstream_requests_limit",
            "Requests that may be at upstreams at once, upstream.max_connections.",
            lambda: self._max_connections,
        )

    def enqueue(self, record: Record) -> None:
        """Put a QUEUED record at the end of the line."""
        self._waiting.append(record)
        self.pump()

    def enqueue_again(self, record: Record, *, not_before: float, earliest: float) -> None:
        """Put a QUEUED record that was upstream in line again; see `Repeats.add`."""
        # Now and not in `ended`, which follows: it may run again before.
        self._free(record)
        now = self._clock.now()
        self._repeats.add(record, now, not_before=not_before, earliest=earliest)
        if not_before <= now:
            self.pump()

    def recovered(self) -> None:
        """An upstream that had failed works again: let those that wait go, from the next pump."""
        self._repeats.recovered(self._clock.now())
        self._budget.let_go(len(self._ready))

    def tick(self, now: float) -> None:
        """Let those join the line whose time has come, and those leave it that are settled.

        pump() drops only what has come to the head: with every connection busy, sessions that come
        and go would make the line longer than `store.max_in_flight` allows samples.
        """
        for request_id, attempts in itertools.islice(self._repeats.expired(now), GIVEN_UP_PER_TICK):
            record = self._store.find(request_id)
            if record is not None and self._repeats.waits_in_vain(record, attempts, now):
                self._give_back(record)
        if self._shut_until <= now:
            self._shut_until = 0.0
        self._sent.tick(now)
        self._repeats.due(now)
        ready = self._ready
        if ready and self._budget.quiet(now):
            self._budget.let_go(len(ready))
        most = 2 * self._store.counts[QUEUED] + SETTLED_IN_LINE
        if len(self._waiting) > most:
            self._waiting = deque(r for r in self._waiting if r.state is QUEUED)
        if len(ready) > most:
            self._repeats.drop_settled()
            self._held = min(self._held, len(ready))
        self.pump()

    def pump(self) -> None:
        """Start waiting records while connections, bytes and upstreams last, at most so many in
        one turn."""
        running, ready = self._running, self._ready
        while (self._waiting or ready) and len(running) < self._max_connections:
            if self._closed or self._shut_until or not self._upstreams.available:
                return
            line = self._next_line() if ready else self._waiting
            if not line:
                return
            record = line[0]
            if record.state is not QUEUED:  # cancelled or evicted while it waited
                line.popleft()
                continue
            if not self._store.has_room(record):
                if self._blocked is not record:
                    self._blocked = record
                    self._shortage.begins(self._clock.now())
                return
            self._blocked = None
            if not self._turn.take():
                return
            line.popleft()
            now = self._clock.now()
            if self._store.start(record, now):
                if line is ready:
                    self._budget.sent_again()
                    self._held = max(0, self._held - 1)
                else:
                    self._sent.first += 1
                running[record] = self._begin(record)

    def _next_line(self) -> deque[Record]:
        """Those to be sent again, or where their budget holds them the others."""
        if self._budget.allows(self._clock.now()):
            return self._ready
        self.delayed += max(0, len(self._ready) - self._held)
        self._held = len(self._ready)
        return self._waiting

    def exchanges(self) -> list[tuple[Record, Any]]:
        """All that run now, each with what `begin` returned."""
        return list(self._running.items())

    def runs(self, record: Record, exchange: Exchange) -> bool:
        """Whether an exchange was neither ended nor aborted."""
        return self._running.get(record) is exchange

    def blocked(self, now: float, for_s: float) -> Record | None:
        """The head of the line, if it has waited for bytes at least so long.

        One that was cancelled or evicted meanwhile needs no room; the next begins its own wait.
        """
        record = self._blocked
        if record is not None and record.state is not QUEUED:
            self._blocked = None
        elif record is not None and self._shortage.lasts(now, for_s):
            self._blocked = None
            return record
        return None

    def ended(self, record: Record, exchange: Exchange) -> None:
        """An exchange is over: its connection is free for the next in line."""
        # A record that went back in line in its last step may be running again already.
        if self._running.get(record) is exchange:
            del self._running[record]
            self._freed(exchange)
        self.pump()

    def _free(self, record: Record) -> Exchange | None:
        exchange = self._running.pop(record, None)
        if exchange is not None:
            self._freed(exchange)
        return exchange

    def abort(self, record: Record) -> Exchange | None:
        """End the upstream request of a record, which is settled elsewhere; returns what `begin`
        had returned, or None where it has none."""
        exchange = self._free(record)
        if exchange is not None:
            self._transport.abort(exchange)
            self.pump()
        return exchange

    def shut(self, until: float) -> None:
        """Start nothing before that time: the last connect failed for want of something of ours."""
        self._shut_until = until

    def stop(self) -> None:
        """Start nothing more."""
        self._closed = True

    def close(self) -> None:
        """Start nothing more, abort what runs."""
        self.stop()
        for exchange in self._running.values():
            self._transport.abort(exchange)
        self._running.clear()
        self._waiting.clear()
        self._repeats.clear()
