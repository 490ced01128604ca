"""Threshold expressions: read, refused with a reason, and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.report.figures import TooFew, UnknownFigure, figure, names, values
from loadgen.report.spectrum import least_count
from loadgen.report.thresholds import ThresholdError, apply, bounds, parse
from tests.loadgen.report.made import histogram, result


@pytest.mark.parametrize(
    ("expression", "name", "operator", "limit"),
    [
        ("e2e.p99 < 2s", "e2e.p99", "<", 2_000),
        ("e2e.p99<2s", "e2e.p99", "<", 2_000),
        ("  e2e.uncorrected.p99.9  <=  250 ms ", "e2e.uncorrected.p99.9", "<=", 250),
        ("submit.mean < 800us", "submit.mean", "<", 0.8),
        ("duration < 1.5min", "duration", "<", 90_000),
        ("duration < 1h", "duration", "<", 3_600_000),
        ("server_cpu_ms_per_sample < 0.4", "server_cpu_ms_per_sample", "<", 0.4),
        ("server_cpu_ms_per_sample < 400us", "server_cpu_ms_per_sample", "<", 0.4),
        ("server_rss_peak <= 1.2GB", "server_rss_peak", "<=", 1.2e9),
        ("server_rss_peak <= 2GiB", "server_rss_peak", "<=", 2 * 2**30),
        ("failed == 0", "failed", "==", 0),
        ("e2e.count >= 131,072", "e2e.count", ">=", 131_072),
        ("polls != 1_000", "polls", "!=", 1_000),
        ("samples_per_s > 568", "samples_per_s", ">", 568),
        ("samples_per_s > 568/s", "samples_per_s", ">", 568),
        ("server_busy < 90%", "server_busy", "<", 0.9),
        ("server_busy < 0.9", "server_busy", "<", 0.9),
        ("retries.5xx == 0", "retries.5xx", "==", 0),
        ("healthz.p99 < 50ms", "healthz.p99", "<", 50),
        ("polls < 1e6", "polls", "<", 1e6),
    ],
)
def test_expressions(expression: str, name: str, operator: str, limit: float) -> None:
    bound = parse(expression)
    assert (bound.name, bound.operator) == (name, operator)
    assert bound.limit == pytest.approx(limit)
    assert bound.expression == expression.strip()


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "not NAME OPERATOR NUMBER[UNIT]"),
        ("e2e.p99", "not NAME OPERATOR NUMBER[UNIT]"),
        ("e2e.p99 = 2s", "not NAME OPERATOR NUMBER[UNIT]"),
        ("e2e.p99 < two", "not NAME OPERATOR NUMBER[UNIT]"),
        ("2s > e2e.p99", "not NAME OPERATOR NUMBER[UNIT]"),
        ("e2e.p99 < 2s && failed == 0", "not NAME OPERATOR NUMBER[UNIT]"),
        ("__import__('os') == 0", "not NAME OPERATOR NUMBER[UNIT]"),
        ("e2e.p99 < 2", "e2e.p99 needs a unit: us, ms, s, min, h"),
        ("e2e.p99 < 2 sec", "not in 'sec'; its units: us, ms, s, min, h; near: s"),
        ("e2e.p99 < 2MB", "not in 'MB'; its units: us, ms, s, min, h"),
        ("server_rss_peak < 100", "server_rss_peak needs a unit: B, kB, MB"),
        ("server_rss_peak < 1gb", "near: GB"),
        ("failed == 0s", "it is a plain number"),
        ("faled == 0", "no figure is called 'faled'; near: failed"),
        ("server_cpu_ms_per_smple < 1", "near: server_cpu_ms_per_sample"),
        ("e2e.p100 < 2s", "no figure is called 'e2e.p100'; near: e2e.p"),
        ("e2e.p999 < 2s", "no figure is called 'e2e.p999'; near: e2e.p99.9"),
        ("queue.uncorrected.p50 < 2s", "no figure is called 'queue.uncorrected.p50'"),
        ("failed == 1e999", "1e999 is no finite number"),
    ],
)
def test_refused_expressions(expression: str, said: str) -> None:
    with pytest.raises(ThresholdError) as caught:
        parse(expression)
    assert said in str(caught.value)
    assert repr(expression) in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "met"),
    [
        ("samples_per_s >= 1000", True),
        ("samples_per_s > 1000", False),
        ("samples == 20000", True),
        ("samples != 20000", False),
        ("failed == 0", True),
        ("abandoned == 7", True),
        ("retries == 7", True),
        ("retries.410 == 3", True),
        ("retries.429 == 0", True),
        ("server_cpu_ms_per_sample < 0.4", False),
        ("server_cpu_ms_per_sample <= 0.4", True),
        ("server_rss_peak < 242MB", True),
        ("server_rss_peak < 240MB", False),
        ("client_cpu == 60%", True),
        ("duration == 20s", True),
        # Not measured is not met, whatever is asked.
        ("server_left_behind == 0", False),
        ("server_left_behind != 0", False),
    ],
)
def test_judged(expression: str, met: bool) -> None:
    made = result()
    apply(made, bounds([expression]))
    assert made.verdict.thresholds[0].ok is met
    assert made.verdict.exit_status == (0 if met else 1)


def test_an_invalid_run_stays_invalid_whatever_the_thresholds_say() -> None:
    for expression in ("failed == 0", "failed == 1"):
        made = result()
        made.verdict.valid = False
        apply(made, bounds([expression]))
        assert made.verdict.exit_status == 3


def test_a_ledger_that_is_not_clean_fails_without_a_threshold() -> None:
    made = result()
    made.verdict.clean = False
    apply(made, [])
    assert made.verdict.exit_status == 1


@pytest.mark.parametrize(
    ("percentile", "samples"),
    [(50, 20), (90, 100), (95, 200), (99, 1_000), (99.9, 10_000), (99.99, 100_000)],
)
def test_a_percentile_needs_ten_samples_above_it(percentile: float, samples: int) -> None:
    assert least_count(percentile) == samples
    name = f"e2e.p{percentile:g}"
    plan = result(samples=10).plan
    for count, refused in ((samples - 1, True), (samples, False)):
        made = type(plan)(scenario="x", url="x", samples=count)
        if refused:
            with pytest.raises(ThresholdError, match=f"needs {samples:,} samples .* {count:,}"):
                bounds([f"{name} < 1h"], plan=made)
        else:
            assert bounds([f"{name} < 1h"], plan=made)


def test_a_run_in_which_too_few_succeeded_does_not_meet_a_percentile() -> None:
    made = result(samples=2_000)
    made.stages["e2e"].corrected = histogram([1.0] * 999)
    with pytest.raises(TooFew):
        figure(made, "e2e.p99")
    apply(made, bounds(["e2e.p99 < 1h"], plan=made.plan))
    assert made.verdict.thresholds[0].value is None
    assert made.verdict.exit_status == 1


def test_percentiles_are_exact_to_three_digits() -> None:
    made = result(samples=10_000)
    made.stages["e2e"].corrected = histogram(range(1, 10_001))
    for name, value in (("p50", 5_000), ("p99", 9_900), ("p12.5", 1_250), ("max", 10_000)):
        assert figure(made, f"e2e.{name}") == pytest.approx(value, rel=1e-3)
    assert figure(made, "e2e.min") == 1
    assert figure(made, "e2e.mean") == pytest.approx(5_000.5)
    assert figure(made, "e2e.count") == 10_000
    uncorrected = figure(made, "e2e.uncorrected.p50")
    assert uncorrected is not None
    assert uncorrected < 100


def test_every_name_can_be_asked_for() -> None:
    made = result(samples=200_000)
    for name in names():
        # p99.99 of the 2,000 health probes is refused, the rest has a value or none.
        try:
            figure(made, name)
        except TooFew:
            assert name in ("healthz.p99.9", "healthz.p99.99")
    found = dict(values(made))
    assert found["samples"] == 200_000
    assert set(found) < set(names())
    made.server = made.upstream = None
    assert figure(made, "server_rss_peak") is figure(made, "healthz.p99") is None
    with pytest.raises(UnknownFigure):
        figure(made, "server_metrics")


def test_a_file_of_thresholds(tmp_path: Path) -> None:
    path = tmp_path / "bars.toml"
    path.write_text('thresholds = [\n  "failed == 0",  # a comment\n  "e2e.p99 < 2s",\n]\n')
    assert [bound.name for bound in bounds(["lost == 0"], [path])] == ["lost", "failed", "e2e.p99"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("thresholds = [", "bars.toml: "),
        ('tresholds = ["failed == 0"]', "unknown key 'tresholds'; the only key is thresholds"),
        ('thresholds = "failed == 0"', "must be a list"),
        ("thresholds = [1]", "must be a list"),
        ("thresholds = []", "is empty"),
        ("", "must be a list"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "bars.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ThresholdError, match=said):
        bounds([], [path])


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ThresholdError) as caught:
        bounds(["faled == 0", "e2e.p99 < 2"], [tmp_path / "none.toml"])
    assert len(str(caught.value).splitlines()) == 3
