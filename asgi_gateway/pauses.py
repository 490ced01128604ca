"""What holds the event loop: how late the ticker comes, and how long the garbage collector takes.

Nothing of it is on a sample's path: one subtraction a tick, two calls a collection.
"""

import asyncio
import gc
from typing import Final

from asgi_gateway.clock import Clock
from asgi_gateway.metrics import Metrics

GENERATIONS: Final = 3
# Scrapes are further apart than ticks; most are within a minute.
RECENT_S: Final = 30.0
MANY: Final = 4096


class LoopLag:
    """How much later than planned a loop came round; the ticker's own time is part of it."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._came_at: float | None = None
        self.last_s = 0.0
        self.max_s = 0.0
        # The most since `_turned_at`, and in the stretch before.
        self._recent_s = self._before_s = 0.0
        self._turned_at = float("-inf")

    def came(self, now: float) -> None:
        """Called at each round, before its work."""
        if self._came_at is not None:
            self.last_s = max(0.0, now - self._came_at - self._every_s)
            self.max_s = max(self.max_s, self.last_s)
            self._recent_s = max(self._recent_s, self.last_s)
        if now - self._turned_at >= RECENT_S:
            self._turned_at, self._before_s, self._recent_s = now, self._recent_s, 0.0
        self._came_at = now

    def add_to(self, metrics: Metrics) -> None:
        name, text = "event_loop_lag_seconds", "How late the event loop's ticker came"
        metrics.gauge(name, f"{text} the last time.", lambda: self.last_s)
        metrics.gauge(f"{name}_max", f"{text} at most since the start.", lambda: self.max_s)
        metrics.gauge(
            "event_loop_lag_recent_seconds",
            f"{text} at most in the last {RECENT_S:g} s to {2 * RECENT_S:g} s: between two scrapes"
            " nothing is missed.",
            lambda: max(self._recent_s, self._before_s),
        )
        metrics.gauge(
            "tasks", "Unfinished tasks of the event loop; each parked poll is one.", tasks
        )


def tasks() -> int:
    """Unfinished tasks of the running loop, the caller's own among them; 0 outside of one.

    Beyond MANY those of all loops that are not collected yet: to look at each takes 0.2 us, and a
    parked poll is a task.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return 0
    # CPython's own set, by its names in 3.11 and from 3.12 on; where there is none all are walked.
    known = getattr(asyncio.tasks, "_all_tasks", getattr(asyncio.tasks, "_scheduled_tasks", ()))
    return len(known) if len(known) > MANY else len(asyncio.all_tasks(loop))


class GcPauses:
    """Collections of this process between `open` and `close`, whoever caused them.

    Each has callbacks of its own, so that one of several in a process ends none of the others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_at: float | None = None
        self.max_s = 0.0
        self.sum_s = [0.0] * GENERATIONS
        self.count = [0] * GENERATIONS

    def open(self) -> None:
        gc.callbacks.append(self._told)

    def close(self) -> None:
        """Does nothing where it is closed already."""
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)

    def _told(self, phase: str, info: dict[str, int]) -> None:
        # One collection at a time: the interpreter starts none inside another.
        if phase == "start":
            self._began_at = self._clock.now()
        elif self._began_at is not None:
            pause_s = self._clock.now() - self._began_at
            self._began_at = None
            self.sum_s[info["generation"]] += pause_s
            self.count[info["generation"]] += 1
            self.max_s = max(self.max_s, pause_s)

    def add_to(self, metrics: Metrics) -> None:
        name, text = "gc_pause_seconds", "Pauses for the garbage collector"
        metrics.summary(
            name,
            f"{text}, by generation.",
            "generation",
            lambda: [(str(i), self.sum_s[i], self.count[i]) for i in range(GENERATIONS)],
        )
        metrics.gauge(f"{name}_max", f"{text}, the longest.", lambda: self.max_s)
