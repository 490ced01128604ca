"""Rows, their one outcome, and the ledgers of many processes as one."""

from pathlib import Path

import numpy as np
import pytest

from loadgen import measure
from loadgen.ledger import Ledger, Merged
from loadgen.measure import Hit
from loadgen.plan import Plan

PLAN = Plan(scenario="test", url="http://127.0.0.1:1", samples=7, processes=2, oracle=False)


def two_processes(folder: Path) -> Merged:
    """Numbers 0, 2, 4, 6 and 1, 3, 5: 4 is lost, 3 fails, 5 is refused after it got two ids."""
    first, second = Ledger(4), Ledger(3)
    for ledger in (first, second):
        for row in range(ledger.count):
            ledger.planned[row], ledger.sent[row] = 100.0 + row, 100.5 + row
            ledger.accepted[row] = 101.0 + row
            ledger.fetched[row] = 102.0 + row
    for row, name in enumerate(("a", "c", "e", "g")):
        first.named(row, name)
    for row, name in enumerate(("b", "a", "f")):
        second.named(row, name)
    second.named(2, "f2")
    second.named(2, "f")
    for row in (0, 1, 3):
        first.succeed(row, 10, 5 if row else 0, 103.0 + row)
    second.succeed(0, 20, 5, 104.0)
    second.fail(1, "failed.server", 105.0, "it broke")
    second.fail(2, "refused.404", 106.0)
    second.succeed(2, 1, 1, 107.0)
    first.traffic.polls, second.traffic.polls = 3, 4
    first.retries["drop"] += 1
    second.retries["drop"] += 1
    merged = Merged(PLAN.samples)
    for process, ledger in enumerate((first, second)):
        ledger.save(folder / f"{process}")
        merged.add(folder / f"{process}", process, 2)
    return merged


def test_rows_of_all_processes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    merged = two_processes(tmp_path)
    assert merged.planned.tolist() == [100, 100, 101, 101, 102, 102, 103]
    assert merged.ids == [["a"], ["b"], ["c"], ["a"], ["e"], ["f", "f2"], ["g"]]
    assert merged.tokens.tolist() == [10, 20, 10, 0, 0, 0, 10]
    assert merged.traffic.polls == 7
    assert merged.traffic.retries == {"drop": 2}


def test_each_sample_has_one_outcome(tmp_path: Path) -> None:
    found = measure.outcomes(two_processes(tmp_path))
    assert (found.succeeded, found.lost) == (4, 1)
    assert found.failed == {"server": 1}
    assert found.refused == {"404": 1}
    assert found.total == 7


def test_what_came_twice(tmp_path: Path) -> None:
    merged = two_processes(tmp_path)
    hits = Hit(dict.fromkeys("abcefg", (1, 0.0, 0.0)) | {"c": (3, 0.0, 0.0)})
    found = measure.doubled(PLAN, merged, hits)
    assert found.request_ids == 1
    assert found.delivered == 1
    assert found.results == 2, "three samples have the digest 5"
    assert found.upstream == 2
    assert measure.doubled(PLAN, merged, hits, excused=2).upstream == 0
    assert measure.doubled(PLAN, merged, None).upstream is None


def test_stages_from_both_sides(tmp_path: Path) -> None:
    merged = two_processes(tmp_path)
    hits = Hit({"a": (1, 101.25, 102.25), "b": (1, 101.25, 102.25)})
    found = measure.stages(PLAN, merged, hits)
    counts = {name: stage.uncorrected.count for name, stage in found.items()}
    assert counts == {
        "submit": 4,
        "fetch": 4,
        "e2e": 4,
        "queue": 2,
        "upstream": 2,
        "deliver": 2,
    }
    assert found["queue"].uncorrected.max_ms == pytest.approx(250, rel=1e-3)
    assert found["upstream"].uncorrected.max_ms == pytest.approx(1000, rel=1e-3)
    assert found["submit"].corrected is not None
    assert found["submit"].corrected.min_ms == 1000
    assert found["submit"].uncorrected.min_ms == 500
    assert found["queue"].corrected is None


def test_a_row_a_second(tmp_path: Path) -> None:
    merged = two_processes(tmp_path)
    progress = [(100.0, 0, 0.0), (102.0, 40, 1.0), (110.0, 40, 1.0)]
    found = measure.series(merged, 100.0, 106.0, progress)
    assert found.t == [1, 2, 3, 4, 5, 6, 7]
    assert sum(found.planned) == 7
    assert sum(found.accepted) == 7
    assert found.completed == [0, 0, 0, 1, 2, 1, 2]
    assert found.in_flight[-1] == 1
    assert found.polls == [20, 20, 0, 0, 0, 0, 0]
    assert found.client_cpu == [0.5, 0.5, 0, 0, 0, 0, 0]
    assert found.p50_ms[3] == pytest.approx(3000, abs=1)
    assert found.p50_ms[0] is None
    assert len(found.p99_ms) == len(found.in_flight) == 7


def test_a_process_that_left_nothing_leaves_its_samples_lost(tmp_path: Path) -> None:
    merged = Merged(4)
    ledger = Ledger(2)
    ledger.succeed(0, 1, 0, 1.0)
    ledger.save(tmp_path / "0")
    merged.add(tmp_path / "0", 0, 2)
    with pytest.raises(OSError, match="No such file"):
        merged.add(tmp_path / "1", 1, 2)
    assert measure.outcomes(merged).lost == 3
    assert np.flatnonzero(merged.named("succeeded")).tolist() == [0]
