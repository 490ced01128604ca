"""Two sides of runs: what fails, what does not, and what cannot be told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadgen.plan import Length
from loadgen.report.changes import lines, markdown
from loadgen.report.compare import CompareError, Comparison, Finding, compare, share
from loadgen.results import Result
from tests.loadgen.report.made import result

JITTER = (0.99, 1.01, 1.0, 1.005, 0.995)


@pytest.fixture(scope="module")
def sides() -> Callable[[float], list[Result]]:
    """Five runs, so many times as slow as the first side's, with a percent of noise."""

    def made(factor: float) -> list[Result]:
        return [
            result(samples=2_000, factor=factor * jitter, seed=seed)
            for seed, jitter in enumerate(JITTER)
        ]

    return made


def findings(comparison: Comparison) -> dict[str, Finding]:
    return {row.name: row.finding for row in comparison.rows}


def test_a_regression_beyond_the_bar_fails(sides: Callable[[float], list[Result]]) -> None:
    made = compare(sides(1), sides(1.3))
    found = findings(made)
    for name in ("samples_per_s", "server_cpu_ms_per_sample", "e2e.p50", "e2e.p99"):
        assert found[name] is Finding.WORSE, name
    assert found["server_rss_peak"] is Finding.SAME
    assert made.exit_status == 1
    rate = made.rows[0]
    assert rate.change == pytest.approx(1 / 1.3 - 1)
    assert "samples_per_s is worse beyond 5.0%" in made.problems


def test_a_gain_and_no_change_do_not_fail(sides: Callable[[float], list[Result]]) -> None:
    made = compare(sides(1.3), sides(1))
    assert findings(made)["samples_per_s"] is Finding.BETTER
    assert findings(made)["server_cpu_ms_per_sample"] is Finding.BETTER
    assert (made.exit_status, made.problems) == (0, [])
    same = compare(sides(1), sides(1))
    assert set(findings(same).values()) == {Finding.SAME}
    assert same.exit_status == 0


def test_a_change_within_the_bar_or_the_noise_does_not_fail(
    sides: Callable[[float], list[Result]],
) -> None:
    assert compare(sides(1), sides(1.1), bar=0.2).exit_status == 0
    assert compare(sides(1), sides(1.1), bar=0.02).exit_status == 1
    lax = compare(sides(1), sides(1.1), ["server_cpu_ms_per_sample"], bar=0.02, bars={})
    assert lax.exit_status == 1
    bars = {"server_cpu_ms_per_sample": 0.2}
    assert compare(sides(1), sides(1.1), ["server_cpu_ms_per_sample"], 0.02, bars).exit_status == 0
    noisy = [*sides(1)[:3], result(samples=2_000, factor=3), result(samples=2_000, factor=0.3)]
    found = compare(noisy, sides(1.1), ["server_cpu_ms_per_sample"], bar=0.0).rows[0]
    assert found.floor is not None
    assert found.floor > 0.5
    assert found.bar == found.floor
    assert found.finding is Finding.UNCLEAR


def test_a_lost_sample_fails_whatever_the_figures(sides: Callable[[float], list[Result]]) -> None:
    after = sides(0.5)
    after[2].outcomes.lost = 1
    made = compare(sides(1), after)
    assert made.exit_status == 1
    assert made.problems == ["lost: 0 samples in A, 1 in B"]
    assert compare(after, sides(1)).problems[0].startswith("samples_per_s"), "fewer is no failure"


def test_an_invalid_run_makes_the_comparison_invalid(
    sides: Callable[[float], list[Result]],
) -> None:
    before = sides(1)
    before[1].verdict.valid = False
    before[1].verdict.reasons = ["client loop lag 900 ms"]
    made = compare(before, sides(1.5))
    assert made.exit_status == 3
    assert "invalid run A2: client loop lag 900 ms" in made.problems


def test_one_run_a_side_is_compared_by_its_course_and_says_so() -> None:
    made = compare([result(seconds=40)], [result(seconds=40, factor=1.3, seed=2)])
    found = findings(made)
    assert found["samples_per_s"] is Finding.WORSE
    assert found["server_rss_peak"] is Finding.SKIPPED
    assert "noise between runs is not seen" in made.notes[0]
    assert made.exit_status == 1
    same = compare([result(seconds=40)], [result(seconds=40, seed=2)])
    assert same.exit_status == 0
    assert findings(same)["samples_per_s"] is Finding.SAME


def test_a_run_of_a_few_seconds_has_no_course() -> None:
    made = compare([result(seconds=9)], [result(seconds=9)])
    assert set(findings(made).values()) == {Finding.SKIPPED}
    assert all("needs 5 runs a side" in (row.why or "") for row in made.rows)
    assert made.exit_status == 0


def test_figures_that_were_not_measured_are_left_out(
    sides: Callable[[float], list[Result]],
) -> None:
    after = sides(1)
    after[0].server = None
    made = compare(sides(1), after, ["server_cpu_ms_per_sample", "lost", "e2e.p99.9"])
    assert [row.why for row in made.rows] == [
        "not measured in every run",
        "a value is 0, a change cannot be told as a factor",
        "e2e.p99.9 needs 10,000 samples to have 10 above it, there are 2,000",
    ]


def test_different_work_is_no_comparison() -> None:
    with pytest.raises(CompareError, match="samples is 20000 and 30000"):
        compare([result()], [result(samples=30_000)])
    with pytest.raises(CompareError, match="A has 2 results, B has 1"):
        compare([result()] * 2, [result()])
    with pytest.raises(CompareError, match="A has 0 results"):
        compare([], [])


def test_another_machine_is_noted() -> None:
    other = result()
    other.environment.cpu = "Other CPU"
    notes = compare([result()], [other]).notes
    assert "not on the same cpu: Other CPU, Test CPU" in notes


@pytest.mark.parametrize(
    ("text", "value"), [("5%", 0.05), (" 0.1 ", 0.1), ("0", 0), ("12.5%", 0.125)]
)
def test_bars(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "five", "-1%", "5%%", "5 % or so", "nan", "inf", "2000%"])
def test_refused_bars(text: str) -> None:
    with pytest.raises(CompareError, match="not a share"):
        share(text)


def test_it_reads_well(sides: Callable[[float], list[Result]]) -> None:
    made = compare(sides(1), sides(1.3))
    shown = list(lines(made))
    assert shown[0] == "5 runs a side; paired runs"
    rate = next(line for line in shown if line.startswith("samples_per_s"))
    assert "-23.1%" in rate
    assert rate.endswith("  worse")
    assert shown[-1] == "FAILED"
    table = list(markdown(made))
    assert table[0].startswith("**FAILED**")
    rows = [line for line in table if line.startswith("|")]
    assert len(rows) == 2 + len(made.rows)
    assert {line.count("|") for line in rows} == {9}


def test_plans_may_differ_in_place_only() -> None:
    other = result()
    other.plan = type(other.plan)(
        scenario="burst",
        url="http://127.0.0.1:9000",
        samples=20_000,
        processes=2,
        output_tokens=Length(low=16, high=16),
    )
    compare([result()], [other])
