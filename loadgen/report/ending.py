"""The end of a run: thresholds, files, table, exit status."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from loadgen.report import thresholds
from loadgen.report.page import page
from loadgen.report.table import lines
from loadgen.results import Result, encode


def check_places(*paths: Path | None) -> None:
    """Before an hour's run rather than after it: raises OSError where a file has no folder."""
    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise NotADirectoryError(f"{path}: there is no folder {path.absolute().parent}")


def finish(
    result: Result,
    wanted: Sequence[thresholds.Bound],
    stream: TextIO,
    json: Path | None = None,
    html: Path | None = None,
) -> int:
    """Judge, print the final table, write the files; returns the exit status.

    Raises OSError where a file cannot be written, MissingExtra. The JSON comes first: it is what
    cannot be made again.
    """
    thresholds.apply(result, wanted)
    if json is not None:
        json.write_bytes(encode(result))
    for line in lines(result):
        print(line, file=stream)
    if html is not None:
        html.write_text(page(result), encoding="utf-8", errors="backslashreplace")
    return result.verdict.exit_status
