"""Whether a result agrees with itself: what types alone do not say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from loadgen.outcomes import RETRIES, WRONG
from loadgen.report.figures import histograms
from loadgen.report.spectrum import LEAST_ABOVE, buckets
from loadgen.results import STAGES, Histogram, Result, SchemaError

EXITS: Final = (0, 1, 3)


def problems(result: Result) -> Iterator[str]:
    """Every contradiction, each with the field that it is in."""
    outcomes = result.outcomes
    if outcomes.total != result.plan.samples:
        yield f"outcomes: {outcomes.total:,} in all, the plan has {result.plan.samples:,} samples"
    yield from (f"outcomes.wrong: unknown kind {kind!r}" for kind in outcomes.wrong.keys() - WRONG)
    unknown = result.traffic.retries.keys() - RETRIES
    yield from (f"traffic.retries: unknown class {name!r}" for name in unknown)
    yield from (f"stages: unknown stage {name!r}" for name in result.stages.keys() - STAGES)
    for path, number in _numbers(msgspec.to_builtins(result), ""):
        # Processes are let go a little before the first sample is planned.
        if number < 0 and not path.endswith(".began_s"):
            yield f"{path}: {number} is below 0"
    for name, histogram in histograms(result):
        yield from (f"{name}: {problem}" for problem in _histogram(histogram))
    yield from _series(result)
    yield from _verdict(result)


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every number with its path, apart from the server's own, whose meaning is not ours."""
    if path in ("server.metrics", "server.moved"):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{path}[{index}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def _histogram(histogram: Histogram) -> Iterator[str]:
    try:
        buckets(histogram)
    except SchemaError as error:
        yield str(error)
    for name, value in histogram.percentiles.items():
        above = round(histogram.count * (1 - float(name.removeprefix("p")) / 100), 6)
        if (value is not None) and above < LEAST_ABOVE:
            yield f"{name} is given with {above:g} samples above it, fewer than {LEAST_ABOVE}"
    # Three digits are kept, so the ends are known to a thousandth.
    if not histogram.min_ms * 0.999 <= histogram.mean_ms <= histogram.max_ms * 1.001:
        yield "min, mean and max are not in order"


def _series(result: Result) -> Iterator[str]:
    rows = len(result.series.t)
    for name in result.series.__struct_fields__:
        column = getattr(result.series, name)
        # An empty column was not measured at all.
        if len(column) not in (0, rows):
            yield f"series.{name}: {len(column)} rows, t has {rows}"
    if result.series.t != sorted(result.series.t):
        yield "series.t: not ascending"


def _verdict(result: Result) -> Iterator[str]:
    verdict = result.verdict
    met = all(threshold.ok for threshold in verdict.thresholds)
    wanted = 3 if not verdict.valid else 0 if verdict.clean and met else 1
    if verdict.exit_status not in EXITS:
        yield f"verdict.exit_status: {verdict.exit_status} is none of {EXITS}"
    elif verdict.exit_status != wanted:
        yield f"verdict.exit_status: {verdict.exit_status}, the rest of the verdict says {wanted}"
    if not verdict.valid and not verdict.reasons:
        yield "verdict.reasons: an invalid run without a reason"
