"""Which module measures which row, and which of them a run takes."""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from tests.bench import codec_rows, delivery, flood, memory, per_sample, shared
from tests.bench.processes import Bench
from tests.bench.table import Figure, Row


class Group(NamedTuple):
    """Rows that one module measures, in one go."""

    name: str
    figures: Sequence[Figure]
    measure: Callable[[Bench, frozenset[str]], Iterator[Row]]
    not_in_quick: frozenset[str] = frozenset()


GROUPS: Final = (
    Group("per-sample", per_sample.FIGURES, per_sample.measure, per_sample.NOT_IN_QUICK),
    Group("codec", codec_rows.FIGURES, codec_rows.measure),
    Group("delivery", delivery.FIGURES, delivery.measure),
    Group("memory", memory.FIGURES, memory.measure),
    Group("flood", flood.FIGURES, flood.measure),
    Group("shared", shared.FIGURES, shared.measure, frozenset(f.name for f in shared.FIGURES)),
)


class UnknownRow(ValueError):
    """A pattern that no row and no group has."""


def select(patterns: Sequence[str], *, quick: bool) -> dict[str, frozenset[str]]:
    """Group -> names of its wanted rows, without those that have none.

    patterns: of names of rows or groups, as in a shell; none of them means all. A row that is asked
    for by name is also taken in a quick run.

    Raises:
        UnknownRow: the pattern.
    """
    chosen: dict[str, frozenset[str]] = {}
    unused = set(patterns)
    for group in GROUPS:
        names = set()
        for figure in group.figures:
            hits = {p for p in patterns if figure.name == p or fnmatchcase(figure.name, p)}
            by_group = {p for p in patterns if fnmatchcase(group.name, p)}
            unused -= hits | by_group
            left_out = quick and figure.name in group.not_in_quick and figure.name not in patterns
            if (hits or by_group or not patterns) and not left_out:
                names.add(figure.name)
        if names:
            chosen[group.name] = frozenset(names)
    if unused:
        raise UnknownRow(f"no row and no group is called {', '.join(sorted(unused))}")
    return chosen


def measure(
    bench: Bench, chosen: dict[str, frozenset[str]], groups: Sequence[Group] = GROUPS
) -> Iterator[Row]:
    """The rows as they come; what breaks takes the rest of its group with it and no other."""
    for group in groups:
        wanted = chosen.get(group.name)
        if wanted is None:
            continue
        done: set[str] = set()
        try:
            for row in group.measure(bench, wanted):
                done.add(row.name)
                yield row
        except Exception as error:  # noqa: BLE001 - it is reported in the rows it cost
            why = _why(error)
            for figure in group.figures:
                if figure.name in wanted - done:
                    yield figure.missing(why, failed=True)


def _why(error: BaseException) -> str:
    """In one line; the first of a group's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[-300:]}"
