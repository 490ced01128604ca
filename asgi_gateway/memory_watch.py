"""How much memory is used of what this process may have, and what is refused before the kernel
kills it for more.

Read about once a second, and as soon as bodies of a share of the limit have come since: against the
limit of the process's control group or of one above it, whichever is lowest, else against the
machine's memory.
"""

import enum
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from asgi_gateway.admission import Admission
from asgi_gateway.errors import Exhausted, Overloaded, Refusal
from asgi_gateway.kernel import MemoryFiles, memory_files, physical_memory_bytes
from asgi_gateway.metrics import Metrics

log = logging.getLogger(__name__)

SOURCE: Final = "memory"
LOOK_EVERY_S: Final = 1.0
# A client on this machine sends a gigabyte a second. What becomes of a body takes three times as
# much for a moment, so that this is 5% of the limit.
LOOK_AFTER_SHARE: Final = 1 / 64
# A level ends so far below where it begins, so that it does not flicker.
HYSTERESIS: Final = 0.03
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Level(enum.IntEnum):
    """What is done about it; each does what those below it do."""

    FINE = 0
    # New samples are answered 429.
    FULL = 1
    # They close their connections, and delivered results are dropped.
    SHEDDING = 2
    # They are answered before their bodies are read.
    CLOSED = 3


# The share of the limit at which a level begins.
BEGINS: Final = {Level.FULL: 0.85, Level.SHEDDING: 0.92, Level.CLOSED: 0.95}


def level_at(share: float, before: Level) -> Level:
    """The level at a share of the limit in use, coming from another."""
    for level in reversed(BEGINS):
        if share >= BEGINS[level] - (HYSTERESIS if before >= level else 0.0):
            return level
    return Level.FINE


class Reading(msgspec.Struct, frozen=True):
    """Bytes, without file cache that the kernel takes back when it needs to."""

    used: int
    limit: int

    @property
    def share(self) -> float:
        return self.used / self.limit


class Meter:
    """Reads one or two files of the control group, or one of the process."""

    def __init__(self, files: MemoryFiles | None = None) -> None:
        self._files = files
        self._limit = files.limit if files is not None else physical_memory_bytes()

    def __call__(self) -> Reading:
        files = self._files
        if files is None:
            return Reading(int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES, self._limit)
        used = int(files.current.read_bytes())
        # Only where it decides: the statistics take five times as long to read.
        if used / self._limit >= BEGINS[Level.FULL] - HYSTERESIS:
            used = max(0, used - _inactive_file(files.stat.read_bytes()))
        return Reading(used, self._limit)


def _inactive_file(statistics: bytes) -> int:
    """Of memory.stat; version 1 has a total over the groups below, version 2 counts them anyway."""
    found = 0
    for line in statistics.splitlines():
        name, _, value = line.partition(b" ")
        if name == b"total_inactive_file":
            return int(value)
        if name == b"inactive_file":
            found = int(value)
    return found


class MemoryWatch:
    def __init__(
        self,
        admission: Admission,
        metrics: Metrics,
        drop: Callable[[int, bool], int],
        read: Callable[[], Reading],
    ) -> None:
        """drop: drops settled results of about so many bytes, a turn's work of them at most, with
        the flag also those that nobody was seen to get; returns the bytes.
        """
        self._admission = admission
        self._metrics = metrics
        self._drop = drop
        self._read = read
        self._looked_at = float("-inf")
        self._owed_bytes = 0
        self._came_bytes = 0
        self._look_after_bytes = 0.0
        self.level = Level.FINE
        # Whether a submit is refused before its body is read.
        self.closed = False
        self.reading = Reading(0, 1)
        for name, text, value in (
            (
                "memory_used_bytes",
                "Memory of the control group or process, without reclaimable file cache.",
                lambda: self.reading.used,
            ),
            (
                "memory_limit_bytes",
                "What it may become: the lowest limit of the control groups, or the machine's.",
                lambda: self.reading.limit,
            ),
            (
                "memory_level",
                "0 fine, 1 submits are refused, 2 delivered results are dropped too, 3 any are.",
                lambda: int(self.level),
            ),
        ):
            metrics.gauge(name, text, value)
        self._look()

    def __repr__(self) -> str:
        return f"<MemoryWatch {self.level.name} at {self.reading.share:.0%}>"

    def refuse(self) -> None:
        """A submit at the highest level. Raises Exhausted."""
        self._metrics.refusals[SOURCE] += 1
        raise Exhausted(self._reason(), SOURCE)

    def came(self, nbytes: int) -> None:
        """A body of a request was read."""
        self._came_bytes += nbytes
        if self._came_bytes > self._look_after_bytes:
            self._look()

    def tick(self, now: float) -> None:
        """Look about once a second; drop results for what was found too much."""
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._look()
        if self._owed_bytes > 0:
            dropped = self._drop(self._owed_bytes, self.closed)
            self._owed_bytes -= dropped or self._owed_bytes

    def _look(self) -> None:
        self._came_bytes = 0
        try:
            self.reading = self._read()
        except (OSError, ValueError):  # the group is gone, or not ours to read
            return
        reading, before = self.reading, self.level
        self._look_after_bytes = LOOK_AFTER_SHARE * reading.limit
        self.level = level_at(reading.share, before)
        self.closed = self.level is Level.CLOSED
        self._owed_bytes = 0
        if self.level >= Level.SHEDDING:
            enough = BEGINS[Level.SHEDDING] - HYSTERESIS
            self._owed_bytes = max(0, reading.used - int(enough * reading.limit))
        if self.level is before:
            return
        log.warning("memory is at %.0f%%: %s", 100 * reading.share, self.level.name.lower())
        if self.level is Level.FINE:
            self._admission.clear(SOURCE)
        else:
            refusal: type[Refusal] = Overloaded if self.level is Level.FULL else Exhausted
            self._admission.object(SOURCE, self._reason(), refusal)

    def _reason(self) -> str:
        reading = self.reading
        return f"{reading.used} bytes of memory are in use, the limit is {reading.limit}"


def process_meter() -> Meter:
    return Meter(memory_files())
