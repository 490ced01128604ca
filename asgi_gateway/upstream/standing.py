"""How one upstream stands: its breaker, its health checks, its samples, and what it is called."""

import itertools
from collections.abc import Callable, Collection
from typing import Final
from urllib.parse import urlsplit

import msgspec

from asgi_gateway.metrics import Counts
from asgi_gateway.upstream.breaker import Breaker
from asgi_gateway.upstream.exchange import Exchange

# Health checks in a row.
EJECT_AFTER: Final = 3
BACK_AFTER: Final = 2
# What came of requests; but for the first three it is the `code` of the error.
CODES: Final = (
    *("ok", "cancelled", "bug", "unavailable", "interrupted", "aborted", "engine_fault"),
    *("rejected", "unreadable", "missing_logprobs"),
)
_STATES: Final = ("closed", "half open", "open")


class UpstreamState(msgspec.Struct, frozen=True):
    """One upstream now. name: host and port. breaker: `closed`, `half open` or `open`. up: whether
    its health checks pass."""

    name: str
    breaker: str
    up: bool
    draining: bool
    in_flight: int


class Upstream:
    """What is known of one upstream; in_flight: samples that are there. heard_at: the tick that saw
    its last answer or health check, or found nothing under way. requests: by what came of them."""

    __slots__ = (
        "_answers_checked",
        "_answers_heard",
        "_bad",
        "_good",
        "breaker",
        "draining",
        "heard_at",
        "in_flight",
        "leaving",
        "name",
        "probing",
        "requests",
        "up",
        "url",
    )

    def __init__(self, url: str, name: str, breaker: Breaker) -> None:
        self.url = url
        self.name = name
        self.breaker = breaker
        self.in_flight = 0
        self.requests = Counts(*CODES)
        self.draining = False
        # It is configured no more, and stays until its last sample is over.
        self.leaving = False
        self.up = True
        self.heard_at: float | None = None
        # Samples that decide whether the breaker closes, and since when they are at the upstream.
        self.probing: dict[Exchange, float | None] = {}
        self._good = self._bad = 0
        # Answers at the last check, and at the last tick.
        self._answers_checked = self._answers_heard = 0

    def __repr__(self) -> str:
        return f"<Upstream {self.name} {self.breaker!r}, {self.in_flight} in flight>"

    @property
    def state(self) -> UpstreamState:
        breaker = _STATES[self.breaker.state]
        draining = self.draining or self.leaving
        return UpstreamState(self.name, breaker, self.up, draining, self.in_flight)

    @property
    def why_not(self) -> str:
        """Why it takes no samples."""
        if self.leaving:
            return "is configured no more; it finishes what it has"
        if self.draining:
            return "is draining"
        if not self.up:
            return "does not answer its health checks"
        return "fails samples; it is tried again soon"

    def tick(self, now: float) -> None:
        answers = self.breaker.outcomes.first
        if answers != self._answers_heard or not self.in_flight or self.heard_at is None:
            self._answers_heard = answers
            self.heard_at = now

    def silent_s(self, now: float) -> float:
        """How long nothing has come though samples are there."""
        return now - self.heard_at if self.in_flight and self.heard_at is not None else 0.0

    def survived(self, now: float, for_s: float, is_sent: Callable[[Exchange], bool]) -> bool:
        """Whether one of those that decide has been there for so long."""
        for exchange, since in self.probing.items():
            if not is_sent(exchange):  # it connects, for the first time or anew
                self.probing[exchange] = None
            elif since is None:
                self.probing[exchange] = now
            elif now - since >= for_s:
                return True
        return False

    def checked(self, alive: bool) -> bool:
        """Take in a health check; returns whether `up` changed.

        An upstream may be too busy to answer one while it answers samples.
        """
        answers = self.breaker.outcomes.first
        answered = answers != self._answers_checked
        self._answers_checked = answers
        if alive:
            self._good, self._bad = self._good + 1, 0
            change = not self.up and self._good >= BACK_AFTER
        else:
            self._good, self._bad = 0, 0 if answered else self._bad + 1
            change = self.up and self._bad >= EJECT_AFTER
        if change:
            self.up = not self.up
        return change


def name_of(url: str, taken: Collection[str]) -> str:
    """What an upstream is called in metrics and texts: host and port, without user, password and
    path; with a number behind where others have the same."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    name = f"{host or 'no-host'}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    numbered = (f"{name}#{number}" for number in itertools.count(2))
    return name if name not in taken else next(one for one in numbered if one not in taken)
