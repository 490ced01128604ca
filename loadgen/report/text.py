"""Figures as people read them."""

from __future__ import annotations

import math
from typing import Final

from loadgen.report.figures import Unit

ABSENT: Final = "not measured"


def duration(ms: float | None) -> str:
    """From microseconds to hours, three significant digits."""
    if ms is None:
        return ABSENT
    if ms < 1:
        return f"{ms * 1e3:.3g} us" if ms else "0 ms"
    if ms < 999.5:
        return f"{ms:.3g} ms"
    if ms < 120e3:
        return f"{ms / 1e3:.3g} s"
    minutes, seconds = divmod(round(ms / 1e3), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def size(value: float | None) -> str:
    """Decimal, as the public figures are."""
    if value is None:
        return ABSENT
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def count(value: float | None) -> str:
    return ABSENT if value is None else f"{round(value):,}"


def rate(value: float | None) -> str:
    if value is None:
        return ABSENT
    digits = 0 if abs(value) >= 100 else max(0, 2 - math.floor(math.log10(abs(value) or 1)))
    return f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1%}"


def plain(name: str, unit: Unit, value: float | None) -> str:
    """A figure of this name in its unit."""
    if unit is Unit.TIME:
        # The name says milliseconds, and a limit on it does too.
        return ABSENT if value is None else f"{value:.3g}" if "_ms" in name else duration(value)
    shown = {Unit.BYTES: size, Unit.COUNT: count, Unit.SHARE: share, Unit.RATE: rate}[unit]
    return shown(value)


def words(parts: dict[str, int]) -> str:
    """Counts by kind, the largest first: "12 server, 3 user"."""
    ordered = sorted(parts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number:,} {name}" for name, number in ordered if number)
