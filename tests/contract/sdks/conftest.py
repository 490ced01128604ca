import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.contract.sdks.matrix import (
    ADAPTER,
    Client,
    Combination,
    StandIn,
    Support,
    combinations,
    running,
)
from tests.support.processes import Served, stand_in, under

support = Support()


@pytest.fixture(scope="session")
def upstream() -> Iterator[StandIn]:
    """Gives each faulty prompt its fault twice, then the right answer."""
    arguments = ["--faults", "--fault-times", "2", "--barrier", "--lora", ADAPTER]
    with stand_in(*arguments) as url:
        yield StandIn(url)


@pytest.fixture(scope="session")
def narrow(upstream: StandIn) -> Iterator[Served]:
    """A gateway with room for two samples, for every client in turn."""
    with under("uvicorn", upstream.url, store__max_in_flight=2) as served:
        yield served


@pytest.fixture(scope="session", params=combinations(), ids=str)
def client(
    request: pytest.FixtureRequest, upstream: StandIn, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    with running(request.param, upstream, tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture(scope="session")
def methods() -> dict[str, dict[str, str]]:
    """Where a verdict about each method goes."""
    return support.methods


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if isinstance(item, pytest.Function) and hasattr(item, "callspec") and report.when == "call":
        made = item.callspec.params.get("client")
        if isinstance(made, Combination):
            title = (item.function.__doc__ or item.name).splitlines()[0].removesuffix(".")
            result = {"passed": "works", "skipped": "absent"}.get(report.outcome, "fails")
            support.add(made, item.function.__name__.removeprefix("test_"), title, result)
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Results are written where a run was asked to, was whole, and passed."""
    path, chosen = os.environ.get("SDK_SUPPORT"), session.config.option.keyword
    if path and not chosen and exitstatus == pytest.ExitCode.OK:
        support.merge_into(Path(path))
