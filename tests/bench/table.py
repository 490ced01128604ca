"""Rows: a figure, its floor, the ratio of the two, the target, and whether it is met."""

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, Final, Literal

import msgspec

FORMAT_VERSION: Final = 1

Run = tuple[float, float]
"""Floor and value of one run, measured right after each other."""


class Row(msgspec.Struct, kw_only=True):
    """One line. `ratio` is the median of the ratios of the runs, not of the medians beside it."""

    name: str
    what: str
    unit: str
    value: float | None = None
    floor: float | None = None
    ratio: float | None = None
    target: str = ""
    ok: bool | None = None
    failed: bool = False
    note: str = ""
    runs: list[Run] = []


class Figure(msgspec.Struct, frozen=True):
    """What is to be measured, and the bound of its value or ratio; no bound, no verdict."""

    name: str
    what: str
    unit: str
    bound: float | None = None
    of: Literal["ratio", "value"] = "ratio"
    at_least: bool = False

    @property
    def target(self) -> str:
        if self.bound is None:
            return ""
        sign, unit = (">=" if self.at_least else "<="), f" {self.unit}"
        return f"{sign} {self.bound:,g}{' x' if self.of == 'ratio' else unit}"

    def paired(self, runs: Sequence[Run], note: str = "") -> Row:
        """A figure and its floor, from runs of both."""
        return self._row(
            value=median(value for _, value in runs),
            floor=median(floor for floor, _ in runs),
            ratio=median(value / floor for floor, value in runs),
            note=note,
            runs=list(runs),
        )

    def single(self, value: float, note: str = "", *, floor: float | None = None) -> Row:
        """A figure that was taken once."""
        return self._row(
            value=value, floor=floor, ratio=None if floor is None else value / floor, note=note
        )

    def missing(self, why: str, *, failed: bool = False) -> Row:
        """It could not be measured. failed: something broke; else what it needs is not there."""
        return self._row(note=f"not measured: {why}", failed=failed)

    def _row(
        self,
        *,
        value: float | None = None,
        floor: float | None = None,
        ratio: float | None = None,
        note: str = "",
        failed: bool = False,
        runs: Sequence[Run] = (),
    ) -> Row:
        judged = ratio if self.of == "ratio" else value
        ok = None
        if judged is not None and self.bound is not None:
            ok = judged >= self.bound if self.at_least else judged <= self.bound
        return Row(
            name=self.name,
            what=self.what,
            unit=self.unit,
            value=value,
            floor=floor,
            ratio=ratio,
            target=self.target,
            ok=ok,
            failed=failed,
            note=note,
            runs=list(runs),
        )


class Report(msgspec.Struct, kw_only=True):
    """The JSON. `version` goes up where a field changes its meaning."""

    version: int = FORMAT_VERSION
    command: str
    environment: dict[str, Any]
    seconds: float
    rows: list[Row]


def text(rows: Sequence[Row]) -> str:
    """For people: a line per row; notes below, by the row's name."""
    lines = [("row", "what", "value", "unit", "floor", "ratio", "target", "met")]
    lines += [
        (
            row.name,
            row.what,
            _number(row.value),
            row.unit,
            _number(row.floor),
            "-" if row.ratio is None else f"{row.ratio:.2f}",
            row.target or "-",
            _verdict(row),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = {2, 4, 5}
    shown = [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    shown.insert(1, "-" * max(map(len, shown)))
    notes = [f"{row.name}: {row.note}" for row in rows if row.note]
    return "\n".join([*shown, *([""] if notes else []), *notes, "", _summary(rows)])


def _summary(rows: Iterable[Row]) -> str:
    counted = [_verdict(row) for row in rows]
    return ", ".join(
        f"{counted.count(verdict)} {what}"
        for verdict, what in (
            ("yes", "met"),
            ("NO", "missed"),
            ("-", "without a verdict"),
            ("FAILED", "failed"),
        )
        if counted.count(verdict)
    )


def _verdict(row: Row) -> str:
    if row.failed:
        return "FAILED"
    return "-" if row.ok is None else ("yes" if row.ok else "NO")


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
