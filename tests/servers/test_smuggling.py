"""Ambiguous requests over a real socket against `serve`: never two answers to one request, and
nothing with two readings reaches the application."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.processes import Served, serve
from tests.support.raw import answers, connected, get, scraped
from tests.support.smuggling import CASES, Case

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def gateway() -> Iterator[Served]:
    with serve("http://127.0.0.1:9") as served:
        yield served


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_smuggling(gateway: Served, case: Case) -> None:
    before = scraped(gateway.port, "sessions")
    with connected(gateway.port) as wire:
        wire.sendall(case.sent)
        came = answers(wire, {"refused": 9, "two": 2}.get(case.expectation, 1))
        statuses, closed = came.statuses, came.closed
        if not closed:
            # Shows whether the connection was kept, and that nothing more is owed on it.
            with contextlib.suppress(ConnectionError):
                wire.sendall(get(close=True))
            more = answers(wire)
            assert more.statuses in ([], [200])
            closed = not more.statuses
    made = scraped(gateway.port, "sessions") - before
    match case.expectation:
        case "refused":
            assert closed
            assert len(statuses) <= 1
            assert all(400 <= status < 600 for status in statuses)
            assert made == 0
        case "one":
            assert len(statuses) <= 1
            assert made <= 1
        case "served":
            assert (statuses, made, closed) == ([200], 1, False)
        case "served, then closed":
            assert (statuses, made) == ([200], 1)
            assert closed
        case "two":
            assert (statuses, made, closed) == ([200, 200], 2, False)
