"""How long `serve` waits for its clients, and how many of them it takes.

A connection in the middle of something stands in one of the registries here, each in the order in
which its wait began, and a sweep ends what lasts too long: no timer a connection, none a request.
What a request costs is one entry among the idle connections. `guarded` is the connections' side.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import LimitSettings

log = logging.getLogger(__name__)

# How often it is looked; what is due is ended up to so much later.
_SWEEP_S: Final = 1.0
# Connections that are ended in one turn of the loop, 30 us each, and the pause until the next ones.
_ENDS_PER_TURN: Final = 32
_PAUSE_S: Final = 0.002
# After the last answer so much time is left to a client that still sends: closing a socket with
# unread bytes resets it, and the answer would be lost with it.
LINGER_S: Final = 5.0
# Below this a body is too slow, however steadily it comes, once `limits.body_s` is over.
BODY_BYTES_PER_S: Final = 64 << 10
# What a reader takes at least in `limits.write_s`, unless it takes all.
WRITE_BYTES: Final = 16 << 10


NameCheck = Callable[[Iterable[tuple[bytes, bytes]]], str | None]


class Visitor(Protocol):
    """A connection as the door sees it."""

    def idle_too_long(self) -> None: ...

    def head_too_slow(self) -> None: ...

    def lingered(self) -> None: ...

    def look_at_body(self, now: float, passed_s: float) -> bool: ...


class Reader(Protocol):
    """A transport whose client takes less than is written to it."""

    def look(self, now: float, limit_s: float) -> bool: ...


class FrontDoor:
    """Beside all connections of one server, inside its event loop."""

    def __init__(
        self,
        limits: LimitSettings,
        *,
        keepalive_s: float,
        connections: int,
        metrics: Metrics,
        refused_name: NameCheck | None = None,
    ) -> None:
        """connections: how many at most. refused_name: says why the Host of headers is refused."""
        self.refused_name = refused_name
        self._keepalive_s = keepalive_s
        self._closed = metrics.closed
        self.now = 0.0
        self.idle: dict[Visitor, float] = {}
        # New ones that sent nothing yet, too.
        self.heads: dict[Visitor, float] = {}
        self.lingering: dict[Visitor, float] = {}
        # These are all looked at in each sweep.
        self.bodies: dict[Visitor, None] = {}
        self.writing: dict[Reader, None] = {}
        self.by_address: dict[str, int] = {}
        self.open = 0
        self.reconfigure(limits, connections)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._swept_at = 0.0
        self._said = dict(self._closed)
        self._said_at = float("-inf")
        metrics.gauge("connections", "Connections of clients to serve.", lambda: self.open)

    def reconfigure(self, limits: LimitSettings, connections: int) -> None:
        """Other limits, for the connections that are there too; none is closed for their number."""
        self.limits = limits
        self.connections = connections
        keepalive_s = self._keepalive_s
        self._sweep_s = min(
            _SWEEP_S,
            *(s / 4 for s in (keepalive_s, limits.header_s, limits.body_idle_s, limits.write_s)),
        )
        self._waits: tuple[tuple[dict[Visitor, float], float, Callable[[Visitor], None]], ...] = (
            (self.heads, limits.header_s, lambda visitor: visitor.head_too_slow()),
            (self.idle, keepalive_s, lambda visitor: visitor.idle_too_long()),
            (self.lingering, LINGER_S, lambda visitor: visitor.lingered()),
        )

    def __repr__(self) -> str:
        waits = f"{len(self.idle)} idle, {len(self.heads)} in a head, {len(self.bodies)} in a body"
        return f"<FrontDoor {self.open} open, {waits}, {len(self.writing)} behind>"

    def let_in(self, address: str | None) -> bool:
        """Whether one more connection is taken; what is not is counted."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self.now = self._swept_at = self._loop.time()
            self._loop.call_later(self._sweep_s, self._sweep)
        if self.open >= self.connections:
            self.count("connections")
            return False
        most = self.limits.connections_per_address
        if most and address is not None:
            if self.by_address.get(address, 0) >= most:
                self.count("connections_per_address")
                return False
            self.by_address[address] = self.by_address.get(address, 0) + 1
        self.open += 1
        return True

    def left(self, visitor: Visitor, address: str | None) -> None:
        self.open -= 1
        if address in self.by_address:
            self.by_address[address] -= 1
            if not self.by_address[address]:
                del self.by_address[address]
        for registry in (self.idle, self.heads, self.lingering):
            registry.pop(visitor, None)
        self.bodies.pop(visitor, None)

    def count(self, reason: str) -> None:
        """One connection is ended for a fault of its client."""
        self._closed[reason] += 1

    # --- time ------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Waits begin at the time of the sweep before, so one sweep more is given to each."""
        assert self._loop is not None
        now = self.now = self._loop.time()
        left = _ENDS_PER_TURN
        try:
            left = self._end_those_due(now)
            self._say(now)
        except Exception:
            log.exception("a sweep of the connections failed")
        finally:
            self._loop.call_later(self._sweep_s if left else _PAUSE_S, self._sweep)

    def _end_those_due(self, now: float) -> int:
        """How many more could be ended in this turn."""
        left = _ENDS_PER_TURN
        for registry, limit_s, end in self._waits:
            due = now - limit_s - self._sweep_s
            while registry and left:
                visitor = next(iter(registry))
                if registry[visitor] > due:
                    break
                del registry[visitor]
                end(visitor)
                left -= 1
        passed_s, self._swept_at = now - self._swept_at, now
        for visitor in list(self.bodies):
            if left and visitor.look_at_body(now, passed_s):
                left -= 1
        for reader in list(self.writing):
            if left and reader.look(now, self.limits.write_s):
                left -= 1
        return left

    def _say(self, now: float) -> None:
        """One line for all that were ended since the last, at most once a second."""
        if now - self._said_at < 1.0 or self._closed == self._said:
            return
        more = {why: n - self._said.get(why, 0) for why, n in self._closed.items()}
        self._said, self._said_at = dict(self._closed), now
        what = ", ".join(f"{n} {why}" for why, n in more.items() if n)
        log.warning("connections ended for faults of their clients: %s", what)
