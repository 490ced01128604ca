"""Whether an upstream is given samples, by what became of those before. Pure; time is an argument.

| state     | samples                   | it leaves                                              |
|-----------|---------------------------|--------------------------------------------------------|
| CLOSED    | all                       | OPEN after so many failures in a row, and no fewer     |
|           |                           | than a tenth of those in flight, or at least half of   |
|           |                           | MIN_OUTCOMES or more within the window                 |
| OPEN      | none                      | HALF_OPEN after its time                               |
| HALF_OPEN | a few at a time, `probes` | CLOSED by a sign of life of one, OPEN by a failure,    |
|           |                           | for twice as long                                      |
"""

import random
from collections.abc import Callable
from typing import Final

from asgi_gateway.upstream.window import Window

# As the metric has them.
CLOSED: Final = 0
HALF_OPEN: Final = 1
OPEN: Final = 2

OPEN_START_S: Final = 1.0
OPEN_CAP_S: Final = 15.0
# A wish of an upstream beyond that is its samples' affair, not all others'.
RETRY_AFTER_CAP_S: Final = 60.0
MIN_OUTCOMES: Final = 20
# Failures in a row must be so large a part of what is in flight: a tenth.
IN_FLIGHT_PER_FAILURE: Final = 10
# Failing so soon after it closed counts as not having recovered.
CALM_S: Final = 10.0


class Breaker:
    """Every sample carries the `turn` in which it started: what started before the breaker opened
    says nothing of the upstream afterwards.

    outcomes: good ones, which the owner may count by itself while it is closed, and failures.
    probing: samples under way that decide; kept by the owner, who knows when they end. opened: how
    often it did.
    """

    __slots__ = (
        "_calm_since",
        "_failures",
        "_good_before",
        "_in_row",
        "_jitter",
        "_open_s",
        "_open_until",
        "opened",
        "outcomes",
        "probes",
        "probing",
        "state",
        "turn",
    )

    def __init__(
        self, failures: int, probes: int, jitter: Callable[[float, float], float] = random.uniform
    ) -> None:
        """failures: in a row, that open it; 0 keeps it closed, whatever happens. probes: samples at
        a time while it is half open."""
        self._failures = failures
        self._jitter = jitter
        self._in_row = 0
        # Good outcomes before the last failure.
        self._good_before = 0
        self.outcomes = Window()
        self._open_s = OPEN_START_S
        self._open_until = 0.0
        self._calm_since = float("-inf")
        self.probes = probes
        self.probing = 0
        self.opened = 0
        self.state = CLOSED
        self.turn = 0

    def __repr__(self) -> str:
        return f"<Breaker {('closed', 'half open', 'open')[self.state]}>"

    def reconfigure(self, failures: int, probes: int) -> bool:
        """Other limits, from the next failure on; returns whether that closed it: without failures
        that open it, it must not go on as it was opened before."""
        self._failures = failures
        self.probes = probes
        if failures or self.state == CLOSED:
            return False
        self.state = CLOSED
        self._begin_anew()
        return True

    @property
    def has_room(self) -> bool:
        """Whether a sample may start now."""
        return self.state == CLOSED or (self.state == HALF_OPEN and self.probing < self.probes)

    def succeeded(self, turn: int, now: float) -> bool:
        """An answer came, or another sign of life; returns whether that closed it."""
        self.outcomes.first += 1
        if self.state == CLOSED or turn != self.turn:
            return False
        self.close(now)
        return True

    def close(self, now: float) -> None:
        """A sample under way has shown that the upstream works, by what the breaker cannot see."""
        self.state = CLOSED
        self._calm_since = now
        self._begin_anew()

    def failed(
        self, turn: int, now: float, retry_after_s: float | None = None, in_flight: int = 0
    ) -> bool:
        """A failure of the upstream; returns whether that opened it.

        in_flight: samples that are there now.
        """
        if turn != self.turn:
            return False
        if self.state == CLOSED and not self._enough(now, in_flight):
            return False
        recovered = self.state == CLOSED and now - self._calm_since >= CALM_S
        self._open_s = OPEN_START_S if recovered else min(2 * self._open_s, OPEN_CAP_S)
        wait_s = self._open_s * self._jitter(0.5, 1.0)
        self._open_until = now + max(wait_s, min(retry_after_s or 0.0, RETRY_AFTER_CAP_S))
        self._begin_anew()
        self.state = OPEN
        self.turn += 1
        self.opened += 1
        return True

    def _enough(self, now: float, in_flight: int) -> bool:
        """Count one failure; returns whether it is one too many."""
        outcomes = self.outcomes
        outcomes.second += 1
        if not self._failures:
            return False
        self._in_row = self._in_row + 1 if outcomes.first == self._good_before else 1
        self._good_before = outcomes.first
        good, bad = outcomes.recent(now)
        # A failure may come at once and a success after minutes, so that a few of many in flight
        # stand in a row though most will succeed.
        return self._in_row >= max(self._failures, in_flight // IN_FLIGHT_PER_FAILURE) or (
            good + bad >= MIN_OUTCOMES and 2 * bad >= good + bad
        )

    def _begin_anew(self) -> None:
        self._in_row = self.probing = 0
        self.outcomes.clear()

    def tick(self, now: float) -> bool:
        """Returns whether it is half open now and was not before."""
        self.outcomes.tick(now)
        if self.state != OPEN or now < self._open_until:
            return False
        self.state = HALF_OPEN
        return True

    def hurry(self) -> None:
        """Something else says that the upstream is back: be half open at the next tick."""
        self._open_until = float("-inf")
