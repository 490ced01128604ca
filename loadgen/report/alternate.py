"""Runs both sides of a comparison by turns, so that what drifts on a machine hits both alike."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from loadgen.report.compare import CompareError
from loadgen.results import Result, SchemaError, decode

PLACE: Final = "{json}"
"""Where a command is told the file to write."""

RESULT_STATUSES: Final = (0, 1, 3)
"""Exit statuses after which `loadgen run` has written its result."""


def order(runs: int) -> Iterator[str]:
    """A B, B A, A B ...: neither side always comes second."""
    for number in range(runs):
        yield from ("AB", "BA")[number % 2]


def words(command: str, side: str) -> list[str]:
    """A command's words. Raises CompareError; no shell ever sees them."""
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise CompareError(f"command {side}: {error}") from error
    if not any(PLACE in word for word in found):
        raise CompareError(f"command {side}: needs {PLACE} where the result's file goes")
    return found


def run_alternately(
    commands: dict[str, list[str]],
    runs: int,
    folder: Path,
    timeout_s: float,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[Result], list[Result]]:
    """Run each side `runs` times; results stay in `folder` as A1.json, B1.json and so on.

    Raises CompareError where a command fails without a result or takes longer than `timeout_s`.
    """
    results: dict[str, list[Result]] = {"A": [], "B": []}
    for side in order(runs):
        number = len(results[side]) + 1
        path = folder / f"{side}{number}.json"
        path.unlink(missing_ok=True)
        say(f"{side}{number} of {runs}")
        results[side].append(_once(f"{side}{number}", commands[side], path, timeout_s))
    return results["A"], results["B"]


def _once(label: str, command: list[str], path: Path, timeout_s: float) -> Result:
    filled = [word.replace(PLACE, str(path)) for word in command]
    try:
        # The runs' own output would bury the comparison; what went wrong still shows.
        done = subprocess.run(filled, check=False, stdout=sys.stderr, timeout=timeout_s)
    except OSError as error:
        raise CompareError(f"run {label}: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise CompareError(f"run {label}: not done within {timeout_s:g} s") from error
    if done.returncode not in RESULT_STATUSES:
        raise CompareError(f"run {label}: exit status {done.returncode}")
    return load(path)


def load(path: Path) -> Result:
    """Read a result. Raises CompareError, which names the file."""
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise CompareError(f"{path}: {error.strerror}") from error
    except SchemaError as error:
        raise CompareError(f"{path}: {error}") from error
