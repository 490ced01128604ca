from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.processes import free_port
from tests.support.sharing import Pair, shared_pair
from tests.support.upstream import FakeUpstream


@pytest.fixture(scope="module")
def upstream_port() -> int:
    """Of the upstream of every test in a module: its gateways go on."""
    return free_port()


@pytest.fixture
async def upstream(upstream_port: int) -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream().running(upstream_port) as fake:
        yield fake


@pytest.fixture(scope="module")
def pair(upstream_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two gateways that share a store, for all tests of a module."""
    url = f"http://127.0.0.1:{upstream_port}"
    with shared_pair(url, tmp_path_factory.mktemp("store"), poll__hold_s=8) as running:
        yield running
        for gateway in running.gateways:
            assert "Traceback" not in gateway.warnings(), gateway.stories()
            assert "bug" not in gateway.warnings(), gateway.stories()
