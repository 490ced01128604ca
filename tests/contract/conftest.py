"""What the contract tests start: a gateway, or two that share a store and look like one.

The second way is marked `system`. Not run in it, for these reasons:

| tests | why |
|---|---|
| test_restart | about the journal, which a shared store takes the place of; see tests/sharing |
| test_trainer, test_trainer_wire, test_trainer_stand_in | no trainer behind a shared store |
| an id of another process (test_statuses) | with a shared key one that no process issued is 404 |
"""

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest

from tests.contract.sdk import Sdk, sdk_process
from tests.support.processes import Served, under
from tests.support.sharing import AsOne, as_one
from tests.support.supervised import Supervised, supervised

Start = Callable[..., contextlib.AbstractContextManager[Served]]
Supervise = Callable[..., contextlib.AbstractContextManager[Supervised | AsOne]]

WAYS = ["one", pytest.param("shared", marks=pytest.mark.system)]


@pytest.fixture(scope="session")
def sdk() -> Iterator[Sdk]:
    """One process of the real SDK for all contract tests."""
    with sdk_process() as running:
        yield running


@pytest.fixture(scope="module", params=WAYS)
def way_to_run(request: pytest.FixtureRequest) -> str:
    way: str = request.param
    return way


@pytest.fixture(scope="module")
def start(way_to_run: str, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """As `under`, without the name of a server."""
    if way_to_run == "one":
        return functools.partial(under, "uvicorn")
    return functools.partial(as_one, folder=tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def supervise(way_to_run: str, tmp_path_factory: pytest.TempPathFactory) -> Supervise:
    """As `supervised`, with a state that is kept."""
    if way_to_run == "one":
        return lambda vllm, state, **settings: supervised(vllm, state, **settings)
    folder = tmp_path_factory.mktemp("store")
    return lambda vllm, state, **settings: as_one(vllm, folder, **settings)
