"""A miniature of `make soak`, and a verdict that can tell a leak."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.procfs import Usage
from loadgen.report.slope import LEAST_BLOCKS, slope
from loadgen.sampler import Seen
from tests.soak.run import Extent, soak
from tests.soak.verdict import NOISE_MB, Memory, Soak, memory, returned, steady, table

MINIATURE = Extent(seconds=3.0, round_s=1.0, rate=80, ttl_s=2.0, every_s=0.1, churn_s=0.1)
HOUR_S = 3600.0


async def test_a_miniature_leaves_nothing_behind() -> None:
    found = await soak(MINIATURE)
    problems = [p for p in found.all_problems() if not p.startswith("the memory")]
    assert not problems, (problems, table(found))  # seconds tell nothing of the memory
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
    before = look(0, descriptors=20, polls_inflight=0, tasks=4, results_held_bytes=0)
    during = look(1, descriptors=90, polls_inflight=50, tasks=60, results_held_bytes=900)
    after = look(2, descriptors=23, polls_inflight=1, tasks=6, results_held_bytes=0)
    found = {count.name: count for count in returned([before, during, after], before, after)}
    assert {name for name, count in found.items() if not count.ok} == {
        "polls_inflight",
        "descriptors",
    }
    assert (found["tasks"].before, found["tasks"].peak, found["tasks"].after) == (4, 60, 6)


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
        "churn": {"sessions": 2},
        "memory": flat,
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
