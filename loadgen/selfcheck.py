"""Whether this process keeps up: how late its loop runs, what CPU it takes, what it waits for.

A loop that is late and took CPU meanwhile had much to do; one that is late and took none was kept
from running by the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from loadgen.results import LATE_MS

TICK_S: Final = 0.05
TICKS_KEPT: Final = 200_000
"""Nearly three hours; later ones replace none and are not kept."""


class Check(msgspec.Struct, kw_only=True):
    """One process's part of results.ClientCheck."""

    cpu: float
    starved: float
    cpu_s: float
    lag_p99_ms: float
    lag_max_ms: float
    late: int
    late_max_ms: float
    descriptors_peak: int


class SelfCheck:
    """Ticks beside the work. A tick counts as busy where work was done since the last one."""

    def __init__(self, work: Callable[[], int], descriptors: Callable[[], int]) -> None:
        """work: a number that rises as work is done. descriptors: how many are open."""
        self._work = work
        self._descriptors = descriptors
        self._lags_s: list[float] = []
        self._busy_s = self._busy_cpu_s = self._starved_s = 0.0
        self._late = 0
        self._late_max_s = 0.0
        self._peak = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._begun_cpu_s = self._cpu_s = time.process_time()
        self._at = time.monotonic()
        self._seen = self._work()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def late(self, late_s: float) -> None:
        """A sample was due this long ago."""
        if late_s * 1000 > LATE_MS:
            self._late += 1
            self._late_max_s = max(self._late_max_s, late_s)

    def _tick(self) -> None:
        at, cpu_s, seen = time.monotonic(), time.process_time(), self._work()
        wall_s, used_s = at - self._at, cpu_s - self._cpu_s
        lag_s = max(0.0, wall_s - TICK_S)
        if len(self._lags_s) < TICKS_KEPT:
            self._lags_s.append(lag_s)
        if seen != self._seen:
            self._busy_s += wall_s
            self._busy_cpu_s += used_s
            self._starved_s += max(0.0, lag_s - used_s)
        self._peak = max(self._peak, self._descriptors())
        self._at, self._cpu_s, self._seen = at, cpu_s, seen
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> Check:
        """The figures since start."""
        if self._timer is not None:
            self._timer.cancel()
        lags = np.array(self._lags_s or [0.0]) * 1000
        busy_s = self._busy_s or 1.0
        return Check(
            cpu=round(self._busy_cpu_s / busy_s, 4),
            starved=round(self._starved_s / busy_s, 4),
            cpu_s=round(time.process_time() - self._begun_cpu_s, 4),
            lag_p99_ms=round(float(np.percentile(lags, 99)), 2),
            lag_max_ms=round(float(lags.max()), 2),
            late=self._late,
            late_max_ms=round(self._late_max_s * 1000, 1),
            descriptors_peak=self._peak,
        )
