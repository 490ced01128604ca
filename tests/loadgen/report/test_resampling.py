"""The bootstrap on synthetic figures whose truth is known. All seeds are fixed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadgen.report.resampling import (
    LEAST_RUNS,
    Floats,
    noise_floor,
    paired,
    student_quantile,
    unpaired,
)


def runs(number: int, mean: float, spread: float, random: np.random.Generator) -> Floats:
    made: Floats = mean * np.exp(random.normal(0, spread, number))
    return made


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # A table of Student's t at 2.5 %.
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)],
)
def test_students_quantile(degrees: int, quantile: float) -> None:
    assert student_quantile(0.025, degrees) == pytest.approx(-quantile, abs=1e-4)


def test_no_noise_gives_the_change_itself() -> None:
    before = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    found = paired(before, before * 1.25, seed=1)
    assert (found.change, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))


def test_what_drifts_on_both_sides_of_a_pair_cancels() -> None:
    random = np.random.default_rng(1)
    drift = runs(8, 100, 0.5, random)
    found = paired(drift, drift * 1.1 * runs(8, 1, 0.01, random), seed=1)
    assert 0.08 < found.low < 0.1 < found.high < 0.12
    apart = unpaired(drift, drift * 1.1, seed=1)
    assert apart.high - apart.low > 0.4, "unpaired, the drift is noise"


@pytest.mark.parametrize("number", [LEAST_RUNS, 8, 20])
def test_the_interval_covers_the_truth_as_often_as_it_says(number: int) -> None:
    random = np.random.default_rng(number)
    trials = 300
    covered = 0
    for trial in range(trials):
        before, after = runs(number, 1, 0.05, random), runs(number, 1.1, 0.05, random)
        found = paired(before, after, seed=trial)
        covered += found.low <= 0.1 <= found.high
    assert 0.89 <= covered / trials <= 0.98


def test_the_floor_is_what_equal_sides_differ_by() -> None:
    spread, pairs = 0.05, 5
    floor = noise_floor(runs(5_000, 300, spread, np.random.default_rng(1)), pairs, seed=1)
    assert floor == pytest.approx(math.expm1(1.96 * spread * math.sqrt(2 / pairs)), rel=0.03)


def test_few_runs_do_not_lower_the_floor() -> None:
    """Drawing from 5 values shows four fifths of their variance; on average that is put right."""
    random = np.random.default_rng(2)
    floors = [noise_floor(runs(5, 1, 0.05, random), 5, seed) for seed in range(200)]
    assert np.mean(floors) == pytest.approx(math.expm1(1.96 * 0.05 * math.sqrt(2 / 5)), rel=0.1)


def test_the_same_seed_gives_the_same_answer() -> None:
    before, after = (runs(6, 1, 0.1, np.random.default_rng(seed)) for seed in (1, 2))
    assert paired(before, after, seed=3) == paired(before, after, seed=3)
    assert paired(before, after, seed=3) != paired(before, after, seed=4)


def test_too_few_runs_and_zeros_are_refused() -> None:
    four, five = np.ones(LEAST_RUNS - 1), np.ones(LEAST_RUNS)
    with pytest.raises(ValueError, match="at least 5 are needed"):
        paired(four, four, 1)
    with pytest.raises(ValueError, match="at least 5 are needed"):
        unpaired(five, four, 1)
    with pytest.raises(ValueError, match="above 0"):
        paired(five, np.array([1.0, 1, 1, 1, 0]), 1)
