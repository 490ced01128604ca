"""The Prometheus text format, as far as a reader of a few series needs it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_LINE: Final = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*\})?\s+(\S+)"
)


def parse(text: str) -> dict[str, float]:
    """Values by name and labels, as they are written; what is no sample is passed over."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        try:
            found[f"{name}{labels or ''}"] = float(value)
        except ValueError:
            continue
    return found


def total(samples: Mapping[str, float], *names: str) -> float | None:
    """The sum over all labels of the first of these names that there is; None for none."""
    for name in names:
        values = [v for key, v in samples.items() if key == name or key.startswith(name + "{")]
        if values:
            return sum(values)
    return None


def is_counter(name: str) -> bool:
    """By its name: what only rises."""
    return name.partition("{")[0].endswith(("_total", "_count", "_sum", "_bucket"))
