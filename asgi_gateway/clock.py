"""Where time comes from. The only module that reads a clock; everything else is handed `now`."""

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock for deadlines and a wall clock for people."""

    def now(self) -> float:
        """Seconds on a clock that never jumps."""

    def wall_time(self) -> float:
        """Seconds since the epoch; may jump, so no deadline rests on it."""


class SystemClock:
    """The machine's clocks."""

    now = staticmethod(time.monotonic)
    wall_time = staticmethod(time.time)
