"""Link tests on both event loops: tests embed the link in asyncio's, users run uvloop's."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from tests.shared.server import cluster_of_one

BOTH = {"test_link.py", "test_hostile.py", "test_subscription.py", "test_server.py"}


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop
    }
    if item.path.name in BOTH:
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    with cluster_of_one() as client:
        yield client


@pytest.fixture
def client(cluster: Any) -> Any:
    """A cluster of one with nothing in it."""
    cluster.flushall()
    return cluster
