"""The server's tests run on both event loops: tests embed it in asyncio's, users run uvloop's."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop
    }
    if item.path.name in {"test_upstream.py", "test_barrier.py", "test_injected.py"}:
        factories["uvloop"] = uvloop.new_event_loop
    return factories
