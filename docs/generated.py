"""Pages and drawings that scripts of this folder write: written anew, or compared with --check."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path


def stale(target: Path, fresh: str) -> list[str]:
    """That the file is not what its script would write, if so."""
    if target.exists() and target.read_text() == fresh:
        return []
    return [f"docs/{target.name} is not what its script in docs/ writes: run that"]


def run(target: Path, fresh: Callable[[], str], problems: Callable[[], Iterable[str]]) -> int:
    """What such a script does; returns its exit status."""
    if "--check" in sys.argv[1:]:
        found = list(problems())
        sys.stderr.writelines(f"{problem}\n" for problem in found)
        return 1 if found else 0
    target.write_text(fresh())
    return 0
