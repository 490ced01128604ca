"""What docs/scaling.md says that the shared store is asked, against a real server."""

import re
from pathlib import Path

import pytest

from docs import scaling_plan
from tests.bench.asked import EACH, Asked, ways
from tests.support.processes import ROOT
from tests.support.valkey import valkey

ROW = re.compile(r"^\| ([^|]+) \| ([\d.]+) \| ([\d,]+) \| ([^|]+) \|$", re.MULTILINE)
# Pages are as full as it happens, so what a sample's part of them has is, too.
BYTES = {True: 0.3, False: 0.1}


@pytest.mark.system
async def test_the_page_says_what_is_asked(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        found = await ways(server)
    page = (ROOT / "docs" / "scaling.md").read_text()
    rows = {way.strip(): (float(n), int(b.replace(",", ""))) for way, n, b, _ in ROW.findall(page)}
    for asked in found:
        calls, nbytes = rows[asked.way]
        assert total(asked) - asked.calls.get("page", 0) == pytest.approx(calls), asked
        assert asked.nbytes == pytest.approx(nbytes, rel=BYTES["page" in asked.calls]), asked


def total(asked: Asked) -> float:
    return sum(asked.calls.values())


def test_batches_are_as_the_page_says() -> None:
    assert f"{EACH} at a time" in (ROOT / "docs" / "scaling.md").read_text()


# --- the plan -------------------------------------------------------------------------------------


def test_the_table_is_what_the_figures_give() -> None:
    assert scaling_plan.problems() == []


@pytest.mark.parametrize("latency_s", [20.0, 60.0, 150.0])
def test_a_crowd_that_is_played_out_asks_as_much(latency_s: float) -> None:
    """A thousandth of the million, poll by poll."""
    plan = scaling_plan.SHOWN[0][1]._replace(in_flight=1_000, latency_s=latency_s)
    seen = scaling_plan.simulated(plan, seconds=40 * latency_s)
    assert seen.in_flight == plan.in_flight
    assert seen.rate == pytest.approx(plan.rate, rel=0.03)
    assert seen.again == pytest.approx(plan.again, rel=0.03)


def test_no_worker_has_more_connections_than_descriptors() -> None:
    for _, plan in scaling_plan.SHOWN:
        for less in (1, 10, 1_000):
            smaller = plan._replace(in_flight=plan.in_flight // less)
            assert smaller.connections / smaller.workers <= smaller.room
            assert smaller.gateway_cores / smaller.workers <= scaling_plan.BUSY
