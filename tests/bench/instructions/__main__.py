"""Measures, prints and compares; with --record stores what was measured.

make instructions
make instructions-record REASON="the journal checks its key on every event"
"""

import argparse
import re
import sys
from typing import Final

from tests.bench.instructions.cases import CASES
from tests.bench.instructions.measure import ROOT, CannotMeasure, measure
from tests.bench.instructions.stored import (
    COUNTS,
    Entry,
    Unexplained,
    find,
    here,
    problems,
    read,
    recorded,
    write,
)

PAGE: Final = ROOT / "docs/performance.md"
_TABLE: Final = re.compile(r"(?<=<!-- counts -->\n).*?(?=<!-- end of counts -->)", re.DOTALL)


def table(entry: Entry) -> str:
    """The stored counts as docs/performance.md shows them."""
    lines = [
        f"Counted with {entry.key.host}; Python {entry.key.python}.\n\n",
        "| function | what | instructions |\n|---|---|---|\n",
    ]
    for name, case in CASES.items():
        count = entry.counts.get(name)
        shown = f"{count.instructions:,}" if count is not None else "not recorded"
        lines.append(f"| `{name}` | {case.text} | {shown} |\n")
    return "".join(lines)


def with_table(page: str, entry: Entry) -> str:
    """The page with the table of an entry in the place that is marked for it."""
    return _TABLE.sub(lambda _: "\n" + table(entry) + "\n", page)


def record(measured: dict[str, int], reason: str) -> None:
    """Raises Unexplained, and stores nothing then."""
    key = here()
    entries = recorded(read(), key, measured, reason)
    write(entries)
    entry = find(entries, key)
    assert entry is not None
    PAGE.write_text(with_table(PAGE.read_text(), entry))
    print(f"stored in {COUNTS.relative_to(ROOT)} for {key}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.instructions")
    parser.add_argument("--record", action="store_true", help="store what is measured")
    parser.add_argument("--reason", default="", help="why counts rose by over 5%%")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="some, to look at only")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    if arguments.record and arguments.cases:
        parser.error("all cases are recorded or none")
    try:
        entry = find(read(), here())
        measured = measure(arguments.cases)
        for name, instructions in measured.items():
            count = entry.counts.get(name) if entry is not None else None
            ratio = f"{instructions / count.instructions:8.3f} of stored" if count else ""
            print(f"{name:24}{instructions:10,}{ratio}")
        if arguments.record:
            record(measured, arguments.reason)
            return 0
    except (CannotMeasure, Unexplained) as error:
        hint = "" if isinstance(error, CannotMeasure) else '; say why with REASON="..."'
        print(f"{error}{hint}", file=sys.stderr)
        return 1
    return verdict(entry, measured, whole=not arguments.cases)


def verdict(entry: Entry | None, measured: dict[str, int], *, whole: bool) -> int:
    if entry is None:
        print(f"nothing to compare with: no counts are stored for {here()}")
        return 0
    found = problems(entry, measured)
    if not whole:
        found = [problem for problem in found if "rose" in problem]
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        print('if that is meant: make instructions-record REASON="..."', file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
