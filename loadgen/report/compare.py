"""Two sides of runs compared: by how much B differs from A, how sure that is, and whether it fails.

A side is one result or several. With LEAST_RUNS and more, run alternately, each pair of runs is
one observation. With fewer, what is left is the course of each first run, second by second, in
blocks: this sees no noise between runs, and the report says so.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from loadgen.report.figures import TooFew, figure, kind_of
from loadgen.report.resampling import (
    LEAST_RUNS,
    Floats,
    Interval,
    noise_floor,
    paired,
    unpaired,
)
from loadgen.results import Result, Series

DEFAULT: Final = (
    "samples_per_s",
    "server_cpu_ms_per_sample",
    "e2e.p50",
    "e2e.p99",
    "healthz.p99",
    "server_rss_peak",
)
FAILURES: Final = ("failed", "refused", "wrong", "lost", "doubled")
BAR: Final = 0.05
BLOCKS: Final = 12
LEAST_ROWS: Final = 2 * LEAST_RUNS
"""Of a run's seconds: neighbours resemble each other, so blocks of two and more are drawn."""

SEED: Final = 1


class CompareError(Exception):
    """Results that cannot be compared, or a bar that cannot be used."""


class Finding(enum.Enum):
    """What the interval says beside the bar."""

    WORSE = "worse"
    BETTER = "better"
    SAME = "within the bar"
    UNCLEAR = "unclear"
    SKIPPED = "not compared"


class Row(msgspec.Struct, kw_only=True):
    """One figure. before, after: in the figure's unit. change, low, high: 0.05 is 5 % more.

    floor: what A differs from A by; bar: the larger of the floor and what was asked for.
    """

    name: str
    finding: Finding
    before: float | None = None
    after: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    bar: float | None = None
    why: str | None = None


class Comparison(msgspec.Struct, kw_only=True):
    """exit_status: 0 nothing is worse beyond its bar, 1 something is, 3 a run is invalid."""

    schema: int = 1
    runs: int
    method: str
    rows: list[Row]
    problems: list[str] = []
    notes: list[str] = []
    exit_status: int = 0


def compare(
    first: Sequence[Result],
    second: Sequence[Result],
    wanted: Sequence[str] = DEFAULT,
    bar: float = BAR,
    bars: Mapping[str, float] | None = None,
    seed: int = SEED,
) -> Comparison:
    """Raises CompareError where the two sides did not do the same, and UnknownFigure."""
    if not first or len(first) != len(second):
        raise CompareError(
            f"A has {len(first)} results, B has {len(second)}; each side needs as many, at least 1"
        )
    _same_work([*first, *second])
    made = Comparison(runs=len(first), method="", rows=[], notes=list(_differences(first, second)))
    enough = len(first) >= LEAST_RUNS
    made.method = "paired runs" if enough else "blocks of seconds within one run a side"
    if not enough:
        made.notes.append(
            f"{len(first)} run(s) a side: noise between runs is not seen; "
            f"{LEAST_RUNS} and more alternate runs a side show it"
        )
    for name in wanted:
        row = _between(name, first, second, seed) if enough else _within(name, first, second, seed)
        _find(row, (bars or {}).get(name, bar))
        made.rows.append(row)
    _settle(made, first, second)
    return made


def share(text: str) -> float:
    """A bar as people write it: 5% or 0.05. Raises CompareError."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if rest or not 0 <= value < 10:
        raise CompareError(f"bar {text!r}: not a share from 0 to 1,000 %, as in 5% or 0.05")
    return value


def _between(name: str, first: Sequence[Result], second: Sequence[Result], seed: int) -> Row:
    sides = []
    for side in (first, second):
        try:
            values = [figure(result, name) for result in side]
        except TooFew as error:
            return Row(name=name, finding=Finding.SKIPPED, why=str(error))
        measured = [value for value in values if value is not None]
        if len(measured) < len(values):
            return Row(name=name, finding=Finding.SKIPPED, why="not measured in every run")
        sides.append(np.array(measured, np.float64))
    before, after = sides
    return _row(name, before, after, paired, seed)


def _within(name: str, first: Sequence[Result], second: Sequence[Result], seed: int) -> Row:
    before, after = blocks(first[0].series, name), blocks(second[0].series, name)
    kind_of(name)
    if before is None or after is None:
        why = f"has no course within a run; needs {LEAST_RUNS} runs a side"
        return Row(name=name, finding=Finding.SKIPPED, why=why)
    if min(before.size, after.size) < LEAST_RUNS:
        why = f"fewer than {LEAST_ROWS} seconds with samples; needs {LEAST_RUNS} runs a side"
        return Row(name=name, finding=Finding.SKIPPED, why=why)
    return _row(name, before, after, unpaired, seed)


def _row(
    name: str,
    before: Floats,
    after: Floats,
    method: Callable[[Floats, Floats, int], Interval],
    seed: int,
) -> Row:
    row = Row(
        name=name,
        finding=Finding.SKIPPED,
        before=math.exp(np.log(before).mean()) if np.all(before > 0) else float(before.mean()),
        after=math.exp(np.log(after).mean()) if np.all(after > 0) else float(after.mean()),
    )
    if not (np.all(before > 0) and np.all(after > 0)):
        row.why = "a value is 0, a change cannot be told as a factor"
        return row
    interval = method(before, after, seed)
    row.change, row.low, row.high = interval.change, interval.low, interval.high
    row.floor = noise_floor(before, after.size, seed)
    return row


def blocks(series: Series, name: str) -> Floats | None:
    """A figure's course in up to BLOCKS stretches of a run, float64[blocks]; None if it has none.

    Seconds in which no sample ended are part of a rate and of nothing else.
    """
    columns: dict[str, tuple[Sequence[float | None], Sequence[float | None] | None]] = {
        "samples_per_s": (series.completed, None),
        "server_cpu_ms_per_sample": (series.server_cpu, series.completed),
        "e2e.p50": (series.p50_ms, None),
        "e2e.p99": (series.p99_ms, None),
    }
    if name not in columns:
        return None
    above, below = columns[name]
    rows = [
        (top, 1.0 if below is None else bottom)
        for top, bottom in zip(above, below or [1.0] * len(above), strict=True)
        if top is not None and bottom is not None
    ]
    if len(rows) < LEAST_ROWS:
        return np.empty(0)
    parts = np.array_split(np.array(rows, np.float64), min(BLOCKS, len(rows) // 2))
    sums = np.array([part.sum(axis=0) for part in parts])
    if np.any(sums[:, 1] == 0):
        return np.empty(0)
    made: Floats = sums[:, 0] / sums[:, 1]
    return made * 1e3 if below is not None else made


def _find(row: Row, bar: float) -> None:
    """Set what the interval says. Worse is measured as a factor, so the bar means the same for
    figures that should rise: 5 % worse is 1.05 times the time or 1 / 1.05 of the rate."""
    if row.low is None or row.high is None or row.floor is None:
        return
    row.bar = max(bar, row.floor)
    low, high = row.low, row.high
    if kind_of(row.name).higher_is_better:
        low, high = 1 / (1 + high) - 1, 1 / (1 + low) - 1
    if low > row.bar:
        row.finding = Finding.WORSE
    elif 1 / (1 + high) - 1 > row.bar:
        row.finding = Finding.BETTER
    elif high <= row.bar and 1 / (1 + low) - 1 <= row.bar:
        row.finding = Finding.SAME
    else:
        row.finding = Finding.UNCLEAR


def _settle(made: Comparison, first: Sequence[Result], second: Sequence[Result]) -> None:
    for name in FAILURES:
        before, after = (sum(figure(r, name) or 0 for r in side) for side in (first, second))
        if after > before:
            made.problems.append(f"{name}: {before:g} samples in A, {after:g} in B")
    made.problems += [
        f"{row.name} is worse beyond {row.bar:.1%}"
        for row in made.rows
        if row.finding is Finding.WORSE
    ]
    invalid = [
        f"{side}{number}: {'; '.join(result.verdict.reasons) or 'no reason is given'}"
        for side, results in (("A", first), ("B", second))
        for number, result in enumerate(results, 1)
        if not result.verdict.valid
    ]
    if invalid:
        made.problems += [f"invalid run {text}" for text in invalid]
        made.exit_status = 3
    else:
        made.exit_status = 1 if made.problems else 0


def _same_work(results: Sequence[Result]) -> None:
    """The plans may differ in where the server is and in how the client splits its own work."""
    free = {"url", "api_key", "source_addresses", "processes", "model"}
    first = msgspec.to_builtins(results[0].plan)
    for result in results[1:]:
        other = msgspec.to_builtins(result.plan)
        for field in first.keys() - free:
            if first[field] != other[field]:
                raise CompareError(
                    f"the plans differ: {field} is {first[field]} and {other[field]}"
                )


def _differences(first: Sequence[Result], second: Sequence[Result]) -> Iterable[str]:
    """What else than the server may be behind a difference."""
    for field in ("machine", "cpu", "cores", "memory", "kernel", "python"):
        values = {str(getattr(result.environment, field)) for result in (*first, *second)}
        if len(values) > 1:
            yield f"not on the same {field}: {', '.join(sorted(values))}"
