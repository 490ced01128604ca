"""A miniature of `make soak`, and a verdict that can tell a leak."""

from __future__ import annotations

import re

import numpy as np
import pytest

from loadgen.procfs import Usage
from loadgen.report.slope import LEAST_BLOCKS, slope
from loadgen.sampler import Seen
from tests.soak.run import Extent, soak
from tests.soak.verdict import (
    BACK_TO_BEFORE,
    BACK_TO_ZERO,
    CHURN,
    NOISE_MB,
    Memory,
    Soak,
    kept,
    memory,
    returned,
    steady,
    table,
)
from tests.soak.watched import Rest

MINIATURE = Extent(
    seconds=4.0, round_s=1.0, rate=80, ttl_s=2.0, every_s=0.1, churn_s=0.1, lapse_s=6.0, hold_s=1.0
)
# Of which a few seconds and samples tell nothing.
NOT_TOLD = re.compile("the memory rises|blocks of the interpreter|abandoned polls did not")
HOUR_S = 3600.0
CHURNED = dict.fromkeys(CHURN, 2)


async def test_a_miniature_leaves_nothing_behind() -> None:
    found = await soak(MINIATURE)
    problems = [p for p in found.all_problems() if not NOT_TOLD.search(p)]
    assert not problems, (problems, table(found))
    assert found.survived == found.samples > 0
    assert found.injected > 0
    for kind in ("sessions", "samples cancelled", "polls given up", "sessions left to lapse"):
        assert found.churn[kind] > 0, found.churn
    peaks = {count.name: count.peak for count in found.counts}
    assert peaks["samples_inflight"] > 0, "there was something to come back from"
    assert peaks["tasks"] > 0
    assert peaks["descriptors"] > 0


# --- the slope ----------------------------------------------------------------------------------


def noisy(per_s: float, count: int = 2_000, step_s: float = 1.0) -> tuple[list[float], list[float]]:
    """Bytes around 100 MB with waves of 20 MB, as a load makes them, and spikes."""
    random = np.random.default_rng(3)
    at = np.arange(count) * step_s
    values = 100e6 + per_s * at + 10e6 * np.sin(at / 7) + random.normal(0, 2e6, count)
    values[::97] += 80e6
    return at.tolist(), values.tolist()


@pytest.mark.parametrize("mb_per_h", [0.0, 20.0, -20.0])
def test_the_interval_has_the_slope_in_it(mb_per_h: float) -> None:
    found = memory(*noisy(mb_per_h * 1e6 / HOUR_S, 7_200))
    assert found.low_mb_per_h < mb_per_h < found.high_mb_per_h
    assert found.high_mb_per_h - found.low_mb_per_h < 10
    assert found.ok == (mb_per_h <= 0)


def test_a_leak_within_the_noise_of_a_short_soak_is_not_told() -> None:
    found = memory(*noisy(20e6 / HOUR_S, 100))
    assert found.bound_mb_per_h == pytest.approx(NOISE_MB / 99 * HOUR_S, abs=0.01)
    assert found.ok


def test_odd_blocks_do_not_move_the_slope() -> None:
    at = np.arange(24.0)
    values = 2 * at
    values[[3, 20]] = 1e9
    found = slope(at, values, seed=1)
    assert found.per_s == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0, abs=0.5)


def test_one_step_is_no_slope() -> None:
    """As of a backlog in the middle, whose memory was not all given back."""
    at, values = noisy(0.0, 7_200)
    stepped = [value + 60e6 * (time > 4_000) for time, value in zip(at, values, strict=True)]
    found = memory(at, stepped)
    assert found.ok, found
    assert found.medians_mb[-1] > found.medians_mb[0] + 50, "the step is there to be seen"


def test_steps_that_come_again_and_again_are_one() -> None:
    """As of a leak in chunks: 10 MB every twenty minutes."""
    at, values = noisy(0.0, 7_200)
    climbed = [value + 10e6 * (time // 1_200) for time, value in zip(at, values, strict=True)]
    assert not memory(at, climbed).ok


def test_the_slope_says_what_it_cannot_use() -> None:
    with pytest.raises(ValueError, match="7 values, at least 8"):
        slope(np.arange(float(LEAST_BLOCKS - 1)), np.zeros(LEAST_BLOCKS - 1), seed=1)
    with pytest.raises(ValueError, match="9 times and 8 values"):
        slope(np.arange(9.0), np.zeros(8), seed=1)


# --- the counts ---------------------------------------------------------------------------------


def look(at: float, rss: int = 0, descriptors: int = 0, **metrics: float) -> Seen:
    named = {f"asgi_gateway_{name}": value for name, value in metrics.items()}
    return Seen(at, Usage(0.0, 0.0, rss, descriptors, 1), named)


def test_what_is_not_back_is_told() -> None:
    still = dict.fromkeys((*BACK_TO_ZERO, *BACK_TO_BEFORE), 0.0)
    before = look(0, 0, 20, **{**still, "tasks": 4, "sessions": 1})
    during = look(1, 0, 90, **{**still, "tasks": 60, "polls_inflight": 50, "sessions": 9})
    after = look(2, 0, 23, **{**still, "tasks": 6, "polls_inflight": 1, "sessions": 2})
    found = {count.name: count for count in returned([before, during, after], before, after)}
    assert {name for name, count in found.items() if not count.ok} == {
        "polls_inflight",
        "sessions",
        "descriptors",
    }
    assert (found["tasks"].before, found["tasks"].peak, found["tasks"].after) == (4, 60, 6)


def test_a_count_that_is_not_told_is_no_count_that_is_back() -> None:
    counts = dict.fromkeys((*BACK_TO_ZERO, *BACK_TO_BEFORE, "tasks"), 0.0)
    seen = look(0, 0, 20, **counts)
    assert returned([seen], seen, seen)
    for name in counts:
        less = look(0, 0, 20, **{n: v for n, v in counts.items() if n != name})
        with pytest.raises(LookupError, match=name):
            returned([less], less, less)
    with pytest.raises(LookupError, match="descriptors"):
        returned([seen], seen, look(0, 0, 0, **counts))


@pytest.mark.parametrize(("more", "ok"), [(0, True), (2_400, True), (2_600, False), (-50, True)])
def test_an_object_of_a_thousand_samples_is_a_leak(more: int, ok: bool) -> None:
    first = Rest(blocks=500_000, rss_mb=90.0)
    found = kept((100_000, first), (600_000, Rest(blocks=500_000 + more, rss_mb=91.0)))
    assert found.samples == 500_000
    assert found.ok == ok
    problems = a_soak(kept=found).all_problems()
    assert bool(problems) != ok


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"survived": 999}, "999 of 1000 samples"),
        ({"injected": 0}, "faults did not happen"),
        ({"abandoned": 0}, "abandoned polls did not happen"),
        ({"churn": {"sessions": 2}}, "samples cancelled did not happen"),
    ],
)
def test_what_did_not_happen_is_not_passed(fields: dict[str, object], told: str) -> None:
    assert told in "; ".join(a_soak(**fields).all_problems())


def test_only_the_steady_part_counts() -> None:
    seen = [look(float(at), rss=at) for at in range(10)]
    assert steady(seen, 3.0, 6.0) == ([3.0, 4.0, 5.0, 6.0], [3.0, 4.0, 5.0, 6.0])


def a_soak(**fields: object) -> Soak:
    flat = Memory(
        mb_per_h=0.1,
        low_mb_per_h=-0.5,
        high_mb_per_h=0.6,
        bound_mb_per_h=1.0,
        steady_s=5_000,
        blocks=24,
        medians_mb=[94.0, 94.5],
    )
    usual: dict[str, object] = {
        "seconds": 7_200.0,
        "samples": 1_000,
        "survived": 1_000,
        "lost": 0,
        "doubled": 0,
        "injected": 5,
        "abandoned": 3,
        "churn": CHURNED,
        "rate": 400.0,
        "memory": flat,
        "kept": kept((100, Rest(blocks=10, rss_mb=1.0)), (1_000, Rest(blocks=11, rss_mb=1.0))),
        "counts": [],
    }
    return Soak(**{**usual, **fields})  # type: ignore[arg-type]


def test_the_table_ends_with_the_verdict() -> None:
    assert table(a_soak())[-1] == "passed"
    assert not a_soak().all_problems()
    rising = Memory(
        mb_per_h=9,
        low_mb_per_h=5,
        high_mb_per_h=12,
        bound_mb_per_h=1,
        steady_s=5_000,
        blocks=24,
        medians_mb=[94.0, 94.5],
    )
    told = table(a_soak(memory=rising, lost=2))
    assert told[-1] == "not passed"
    assert "FAILED: 2 lost" in told
    assert "FAILED: the memory rises by 5.00 MB/h at least; the bound is 1.00" in told
