from collections.abc import Iterator
from typing import Any

import pytest

from tests.shared.server import redis_server
from tests.store import records
from tests.store.records import NewStore
from tests.store.shared import SharedStore


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    with redis_server() as client:
        yield client


@pytest.fixture(params=["memory", pytest.param("shared", marks=pytest.mark.system)])
def new_store(request: pytest.FixtureRequest) -> NewStore:
    """Makes stores of either kind, one at a time."""
    if request.param == "memory":
        return records.new_store
    client = request.getfixturevalue("server")

    def made(*, max_in_flight: int = 1000, max_bytes: int = 1_000_000) -> SharedStore:
        return SharedStore(client, max_in_flight=max_in_flight, max_bytes=max_bytes)

    return made
