"""Libraries of the extra [loadgen]: what to say where they are not installed."""

from __future__ import annotations

import importlib
from types import ModuleType


class MissingExtra(Exception):
    """A library of the extra is not installed."""


def needed(module: str, purpose: str) -> ModuleType:
    """Import a module of the extra. Raises MissingExtra, which says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{purpose} needs {error.name}: pip install 'asgi-gateway[loadgen]'"
        ) from error
