"""What a fault did: the row of the table, and when it counts as survived."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec


class Size(NamedTuple):
    """How much of everything. samples: of one load. sockets: of rows about many connections."""

    samples: int
    sockets: int
    polls: int
    """Abandoned ones."""
    small: bool = False


SMALL: Final = Size(samples=60, sockets=100, polls=1_000, small=True)


def full(sockets: int) -> Size:
    """Loads grow with the sockets, up to what a row may take of the time; so do abandoned polls."""
    return Size(samples=min(sockets, 600), sockets=sockets, polls=100 * sockets)


class Found(msgspec.Struct, kw_only=True):
    """injected: faults given. survived: samples that ended as they should (where a row has none,
    requests that were answered as they should). lost: without an outcome, or refused. doubled: as
    policies call it, two upstream requests of one request id beyond what the table of outcomes
    allows, or a result delivered for another sample. recovery_s: from the end of the fault until a
    sample went through again; of faults of single samples, the longest that any sample took.
    """

    injected: int = 0
    survived: int = 0
    lost: int = 0
    doubled: int = 0
    recovery_s: float | None = None
    problems: list[str] = []
    figures: dict[str, float] = {}

    def needs(self, holds: bool, otherwise: str) -> None:
        """Note what is wrong where something does not hold."""
        if not holds and otherwise not in self.problems:
            self.problems.append(otherwise)

    def all_problems(self) -> list[str]:
        """Everything that speaks against the row; empty where it is passed."""
        found = list(self.problems)
        if not self.injected:
            found.append("nothing was injected, so nothing was tested")
        if not self.survived:
            found.append("nothing survived")
        if self.lost:
            found.append(f"{self.lost} lost")
        if self.doubled:
            found.append(f"{self.doubled} doubled")
        return found


class Row(NamedTuple):
    """bar: what must hold, in words. fast: whether the test suite runs it at small size."""

    name: str
    fault: str
    bar: str
    run: Callable[[Size], Awaitable[Found]]
    fast: bool = False


class Told(msgspec.Struct, kw_only=True):
    """A row that was run. error: why it could not be, None where it was."""

    name: str
    fault: str
    bar: str
    found: Found
    seconds: float
    ok: bool
    problems: list[str]


HEADINGS: Final = (
    "fault",
    "injected",
    "survived",
    "lost",
    "doubled",
    "recovery, s",
    "verdict",
)


def table(rows: list[Told]) -> list[str]:
    """The rows as markdown, problems below."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|" + "---:|" * 5 + "---|"]
    for row in rows:
        found = row.found
        recovery = "" if found.recovery_s is None else f"{found.recovery_s:.2f}"
        cells = (
            row.fault,
            f"{found.injected:,}",
            f"{found.survived:,}",
            str(found.lost),
            str(found.doubled),
            recovery,
            "ok" if row.ok else "FAILED",
        )
        lines.append("| " + " | ".join(cells) + " |")
    failed = [row for row in rows if not row.ok]
    if failed:
        lines.append("")
    lines += [f"{row.name} FAILED: {problem}" for row in failed for problem in row.problems]
    lines.append("")
    lines.append(f"{len(rows) - len(failed)} of {len(rows)} rows passed")
    return lines
