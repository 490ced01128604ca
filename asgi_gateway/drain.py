"""How a process that is told to stop does it: serving, predrain, draining, stopped. Pure.

| stage    | `/readyz` | new samples | polls and running samples | ends                            |
|----------|-----------|-------------|---------------------------|---------------------------------|
| SERVING  | ready     | taken       | as always                 | at the first signal             |
| PREDRAIN | 503       | taken       | as always                 | after `drain.predrain_s`        |
| DRAINING | 503       | 503         | as always                 | all delivered, or `grace_s` on |
| STOPPED  | 503       | 503         | try-again, handed back    | with the process                |

A second signal goes to STOPPED from anywhere. What follows is the caller's affair.
"""

import enum
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from asgi_gateway.admission import Admission
from asgi_gateway.errors import Unready
from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import DrainSettings, Settings
from asgi_gateway.store.memory import MemoryStore

log = logging.getLogger(__name__)

SOURCE: Final = "drain"


class Stage(enum.IntEnum):
    SERVING = 0
    PREDRAIN = 1
    DRAINING = 2
    STOPPED = 3


class Left(NamedTuple):
    """What a stop would interrupt: samples that are not settled, outcomes that no client has."""

    unfinished: int
    undelivered: int

    @classmethod
    def of(cls, store: MemoryStore) -> "Left":
        """A sample that is lost counts until its client was told."""
        return cls(store.in_flight, store.awaited() + store.targets.lost)

    def __str__(self) -> str:
        return f"{self.unfinished} samples unfinished, {self.undelivered} results undelivered"


class Drain:
    """Driven by `signalled` and by a ticker; both say what time it is."""

    def __init__(
        self,
        settings: DrainSettings,
        admission: Admission,
        left: Callable[[], Left],
        let_go: Callable[[], None],
    ) -> None:
        """left: asked at each tick of a drain. let_go: answers parked polls; called at its end."""
        self._predrain_s = settings.predrain_s
        self._grace_s = settings.grace_s
        self._admission = admission
        self._left = left
        self._let_go = let_go
        self._until = 0.0
        self._stopped: Callable[[], None] | None = None
        self.stage = Stage.SERVING

    def __repr__(self) -> str:
        return f"<Drain {self.stage.name.lower()}>"

    def reconfigure(self, settings: Settings) -> None:
        """Other times, for stages that have not begun."""
        self._predrain_s = settings.drain.predrain_s
        self._grace_s = settings.drain.grace_s

    def signalled(self, now: float, stopped: Callable[[], None]) -> None:
        """The first time: begin, and call `stopped` once at the end. Later: come to the end now."""
        if self.stage is Stage.SERVING:
            self._stopped = stopped
            self.stage = Stage.PREDRAIN
            self._until = now + self._predrain_s
            if self._predrain_s or self._grace_s:
                log.warning(
                    "draining for at most %g s, a second signal stops at once: %s",
                    self._predrain_s + self._grace_s,
                    self._left(),
                )
            self.tick(now)
        else:
            self._stop()

    def tick(self, now: float) -> None:
        """Go on where it is time, and say what is left."""
        if self.stage is Stage.PREDRAIN:
            if now < self._until:
                self._admission.object(SOURCE, f"about to drain: {self._left()}")
                return
            self.stage = Stage.DRAINING
            # From the planned time and not from now: a loop that is late stops no later.
            self._until += self._grace_s
        if self.stage is Stage.DRAINING:
            left = self._left()
            if now >= self._until or not any(left):
                self._stop()
            else:
                self._admission.object(SOURCE, f"draining: {left}", Unready)

    def _stop(self) -> None:
        stopped, self._stopped = self._stopped, None
        self.stage = Stage.STOPPED
        if stopped is not None:
            left = self._left()
            if any(left):
                log.warning("stopped with %s", left)
            self._let_go()
            stopped()

    def refuse(self) -> None:
        """Nothing is taken any more, whatever the stage: the process is stopping."""
        self._admission.object(SOURCE, "the gateway is stopping", Unready)

    def add_to(self, metrics: Metrics) -> None:
        metrics.gauge(
            "draining",
            "0 serving, 1 about to drain, 2 draining, which refuses new samples.",
            lambda: min(self.stage, Stage.DRAINING),
        )
