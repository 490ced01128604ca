"""A comparison as people read it: a table for a terminal and one in markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from loadgen.report.compare import Comparison, Row
from loadgen.report.figures import kind_of
from loadgen.report.table import aligned, escaped
from loadgen.report.text import plain

COLUMNS: Final = ("figure", "A", "B", "change", "95 % interval", "A/A floor", "bar", "finding")
STATES: Final = {
    0: "OK: nothing is worse beyond its bar",
    1: "FAILED",
    3: "INVALID: a run was limited by its client or machine",
}


def cells(row: Row) -> Sequence[str]:
    unit = kind_of(row.name).unit
    known = row.low is not None and row.high is not None
    interval = f"{row.low:+.1%} to {row.high:+.1%}" if known else "-"
    why = f" ({row.why})" if row.why else ""
    return (
        row.name,
        "-" if row.before is None else plain(row.name, unit, row.before),
        "-" if row.after is None else plain(row.name, unit, row.after),
        "-" if row.change is None else f"{row.change:+.1%}",
        interval,
        "-" if row.floor is None else f"{row.floor:.1%}",
        "-" if row.bar is None else f"{row.bar:.1%}",
        f"{row.finding.value}{why}",
    )


def lines(comparison: Comparison) -> Iterator[str]:
    yield f"{comparison.runs} runs a side; {comparison.method}"
    # The last column is prose; aligned to the right it would be hard to read.
    *rows, last = zip(COLUMNS, *map(cells, comparison.rows), strict=True)
    table = aligned(list(zip(*rows, strict=True)))
    yield from (f"{line}  {said}" for line, said in zip(table, last, strict=True))
    yield from (f"note: {note}" for note in comparison.notes)
    yield from (f"problem: {problem}" for problem in comparison.problems)
    yield STATES[comparison.exit_status]


def markdown(comparison: Comparison) -> Iterator[str]:
    how = f"{comparison.runs} runs a side; {comparison.method}"
    yield f"**{STATES[comparison.exit_status]}** ({how})"
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{' --- |' * len(COLUMNS)}"
    for row in comparison.rows:
        yield f"| {' | '.join(escaped(cell) for cell in cells(row))} |"
    if comparison.notes or comparison.problems:
        yield ""
    yield from (f"- {escaped(text)}" for text in (*comparison.problems, *comparison.notes))
