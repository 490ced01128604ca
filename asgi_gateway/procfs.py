"""What the kernel says of this process, under the names that Prometheus clients give it.

Read when scraped, from /proc, some 40 us; a system without it has none of these.
"""

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

from asgi_gateway.metrics import Metrics

_SELF: Final = Path("/proc/self")
# Fields of /proc/self/stat after the command's name, which may hold blanks and parentheses.
_UTIME, _STIME, _START, _VSIZE, _RSS = 11, 12, 19, 20, 21
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Stat:
    """The fields of /proc/self/stat; the last ones where no descriptor is left to read it."""

    def __init__(self) -> None:
        self._fields = self._read()

    def _read(self) -> list[str]:
        return (_SELF / "stat").read_text().rpartition(")")[2].split()

    def _now(self) -> list[str]:
        with contextlib.suppress(OSError):
            self._fields = self._read()
        return self._fields

    def cpu_s(self) -> float:
        fields = self._now()
        return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_A_SECOND

    def resident_bytes(self) -> int:
        return int(self._now()[_RSS]) * _PAGE_BYTES

    def virtual_bytes(self) -> int:
        return int(self._now()[_VSIZE])

    def started_at(self) -> float:
        """Unix time."""
        return _booted_at() + int(self._fields[_START]) / _TICKS_A_SECOND


def add_to(metrics: Metrics) -> None:
    """The process's gauges and counters, where /proc has them."""
    try:
        stat = Stat()
        started_at = stat.started_at()
    except OSError:
        return
    for name, kind, text, read in (
        ("cpu_seconds_total", metrics.counter, "CPU time of the process.", stat.cpu_s),
        ("resident_memory_bytes", metrics.gauge, "Resident memory.", stat.resident_bytes),
        ("virtual_memory_bytes", metrics.gauge, "Virtual memory.", stat.virtual_bytes),
        ("open_fds", metrics.gauge, "Open file descriptors.", _open_descriptors),
        ("max_fds", metrics.gauge, "File descriptors allowed.", _allowed_descriptors),
        (
            "start_time_seconds",
            metrics.gauge,
            "When the process began, Unix time.",
            lambda: started_at,
        ),
    ):
        kind(name, text, read, prefix="process_")


def _open_descriptors() -> int:
    """Linux says how many in one call from 6.2 on; listing 100,000 holds the loop for 0.1 s."""
    try:
        count = (_SELF / "fd").stat().st_size
        return count or sum(1 for _ in (_SELF / "fd").iterdir()) - 1  # less the one that lists them
    except OSError:
        return _allowed_descriptors()  # none is left to list them with


def _allowed_descriptors() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _booted_at() -> float:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0
