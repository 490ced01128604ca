"""Types of command line arguments. Light: --help imports this."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def names(text: str) -> list[str]:
    """A comma-separated list."""
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError("an empty name")
    return found


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number within bounds."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"not a whole number: {text!r}") from None
        if value < least or (most is not None and value > most):
            bound = f"at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be {bound}, got {value}")
        return value

    return convert


def seconds(text: str) -> float:
    """Zero or more seconds."""
    value = _number(text, "a number of seconds")
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"must be zero or more seconds, got {text}")
    return value


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = _number(text, "a number")
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {text}")
    return value


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not {what}: {text!r}") from None
