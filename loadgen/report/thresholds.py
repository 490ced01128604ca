"""Thresholds: expressions such as `e2e.p99 < 2s`, from flags or a TOML file."""

from __future__ import annotations

import difflib
import math
import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadgen.plan import Plan
from loadgen.report.figures import TooFew, Unit, UnknownFigure, check_count, figure, kind_of
from loadgen.results import Result, Threshold

OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
UNITS: Final[dict[Unit, dict[str, float]]] = {
    Unit.TIME: {"us": 1e-3, "ms": 1.0, "s": 1e3, "min": 60e3, "h": 3_600e3},
    Unit.BYTES: {
        "B": 1.0,
        "kB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "KiB": 2.0**10,
        "MiB": 2.0**20,
        "GiB": 2.0**30,
    },
    Unit.SHARE: {"%": 0.01},
    Unit.RATE: {"/s": 1.0},
    Unit.COUNT: {},
}
EXPRESSION: Final = re.compile(
    r"\s*(?P<name>[A-Za-z][\w.]*)\s*(?P<operator><=|>=|==|!=|<|>)"
    r"\s*(?P<number>-?[\d_,]*\.?\d+(?:[eE][+-]?\d+)?)\s*(?P<unit>[A-Za-z%/]*)\s*"
)


class ThresholdError(Exception):
    """An expression or a file of them that cannot be used; it names what and why."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One expression. limit: in the figure's unit, see figures.Unit."""

    expression: str
    name: str
    operator: str
    limit: float

    def judge(self, result: Result) -> Threshold:
        """What was not measured, or cannot be told from so few samples, is not met."""
        try:
            value = figure(result, self.name)
        except TooFew:
            value = None
        met = value is not None and OPERATORS[self.operator](value, self.limit)
        return Threshold(expression=self.expression, value=value, ok=met)


def parse(expression: str) -> Bound:
    """Read one expression. Raises ThresholdError."""
    found = EXPRESSION.fullmatch(expression)
    if found is None:
        raise ThresholdError(
            f"threshold {expression!r}: not NAME OPERATOR NUMBER[UNIT], as in e2e.p99 < 2s; "
            f"operators: {' '.join(OPERATORS)}"
        )
    name, unit = found["name"], found["unit"]
    try:
        kind = kind_of(name)
    except UnknownFigure as error:
        raise ThresholdError(f"threshold {expression!r}: {error}") from None
    factors = UNITS[kind.unit]
    if unit:
        if unit not in factors:
            raise ThresholdError(_wrong_unit(expression, name, kind.unit, unit))
        factor = factors[unit]
    elif kind.unitless:
        factor = 1.0
    else:
        raise ThresholdError(f"threshold {expression!r}: {name} needs a unit: {', '.join(factors)}")
    number = float(found["number"].replace("_", "").replace(",", ""))
    if not math.isfinite(number):
        raise ThresholdError(f"threshold {expression!r}: {found['number']} is no finite number")
    return Bound(expression.strip(), name, found["operator"], number * factor)


def _wrong_unit(expression: str, name: str, unit: Unit, given: str) -> str:
    known = UNITS[unit]
    allowed = f"its units: {', '.join(known)}" if known else "it is a plain number"
    folded = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), folded, n=1, cutoff=0.5)
    hint = f"; near: {folded[near[0]]}" if near else ""
    return f"threshold {expression!r}: {name} is not in {given!r}; {allowed}{hint}"


def read(path: Path) -> list[str]:
    """The expressions of a TOML file: `thresholds = ["failed == 0", ...]`, and no other key."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThresholdError(f"{path}: {error}") from error
    unknown = sorted(content.keys() - {"thresholds"})
    if unknown:
        raise ThresholdError(f"{path}: unknown key {unknown[0]!r}; the only key is thresholds")
    found = content.get("thresholds")
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ThresholdError(f"{path}: thresholds must be a list of expressions")
    if not found:
        raise ThresholdError(f"{path}: thresholds is empty")
    return found


def bounds(
    expressions: Iterable[str], files: Sequence[Path] = (), plan: Plan | None = None
) -> list[Bound]:
    """Every expression of flags and files, all problems in one ThresholdError.

    With a plan, a percentile that its samples cannot give is a problem too: better known before
    the run than after it.
    """
    problems: list[str] = []
    texts = list(expressions)
    for path in files:
        try:
            texts += read(path)
        except ThresholdError as error:
            problems.append(str(error))
    found = []
    for text in texts:
        try:
            bound = parse(text)
            # The health probe counts its own samples, ten a second.
            if plan is not None and not bound.name.startswith("healthz."):
                check_count(bound.name, plan.samples)
        except ThresholdError as error:
            problems.append(str(error))
        except TooFew as error:
            problems.append(f"threshold {text!r}: {error}")
        else:
            found.append(bound)
    if problems:
        raise ThresholdError("\n".join(problems))
    return found


def apply(result: Result, wanted: Iterable[Bound]) -> None:
    """Judge the thresholds and set the result's verdict and exit status by them."""
    verdict = result.verdict
    verdict.thresholds = [bound.judge(result) for bound in wanted]
    met = all(threshold.ok for threshold in verdict.thresholds)
    if not verdict.valid:
        verdict.exit_status = 3
    else:
        verdict.exit_status = 0 if met and verdict.clean else 1
