"""The command line of the bench. Exit status 1 where a row could not be measured because something
broke, and with --strict also where a target was missed."""

import argparse
import gc
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import msgspec

from tests.bench.groups import GROUPS, UnknownRow, measure, select
from tests.bench.processes import Bench
from tests.bench.stamp import environment
from tests.bench.table import Report, Row, text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="The figures of the gateway and their targets."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="smaller counts, fewer rows: two minutes, rough")
    add("--only", action="append", default=[], metavar="ROWS", help="names or patterns of rows or groups, comma-separated, repeatable")  # fmt: skip # noqa: E501
    add("--list", action="store_true", help="print the rows and their targets, measure nothing")
    add("--json", metavar="FILE", help="write the report there")
    add("--runs", type=int, help="pairs of floor and gateway that a median is of (3; quick 2)")
    add("--transport", choices=("httptools", "aiohttp"), help="the gateway's upstream.transport")
    add("--floor", choices=("uvicorn", "serve"), default="uvicorn", help="server of the empty application that floors are taken of")  # fmt: skip # noqa: E501
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="a setting of the gateway")
    add("--no-pin", action="store_true", help="do not give the gateway a core of its own")
    add("--strict", action="store_true", help="a missed target is exit status 1 too")
    arguments = parser.parse_args(argv)
    if arguments.list:
        return _list()
    if arguments.runs is not None and arguments.runs < 1:
        parser.error("argument --runs: must be at least 1")
    settings = dict(pair.partition("=")[::2] for pair in arguments.set)
    if arguments.transport:
        settings["upstream.transport"] = arguments.transport
    patterns = [p for part in arguments.only for p in part.split(",") if p]
    try:
        chosen = select(patterns, quick=arguments.quick)
    except UnknownRow as error:
        parser.error(f"argument --only: {error}")
    bench = Bench(
        quick=arguments.quick,
        runs=arguments.runs or (2 if arguments.quick else 3),
        settings=settings,
        pinned=not arguments.no_pin,
        floor=arguments.floor,
    )
    return _run(bench, chosen, arguments, sys.argv[1:] if argv is None else argv)


def _run(
    bench: Bench, chosen: dict[str, frozenset[str]], arguments: argparse.Namespace, argv: list[str]
) -> int:
    where, began = environment(), time.monotonic()
    where["quick"] = bench.quick
    where["settings"] = bench.settings
    where["floor"] = arguments.floor
    if bench.client_core is not None:
        os.sched_setaffinity(0, {bench.client_core})
    rows: list[Row] = []
    try:
        for row in measure(bench, chosen):
            rows.append(row)
            at = time.monotonic() - began
            print(f"{at:5.0f} s  {row.name}  {row.note}", file=sys.stderr, flush=True)
    finally:  # told to stop, too, it says what it has
        report = Report(
            command=shlex.join(["python", "-m", "tests.bench", *argv]),
            environment=where,
            seconds=round(time.monotonic() - began, 1),
            rows=rows,
        )
        print(text(rows), flush=True)
        if arguments.json:
            encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
            Path(arguments.json).write_bytes(encoded + b"\n")
    bad = any(row.failed or (arguments.strict and row.ok is False) for row in rows)
    return 1 if bad else 0


def _list() -> int:
    for group in GROUPS:
        for figure in group.figures:
            print(f"{group.name:12} {figure.name:18} {figure.what}  {figure.target}")
    return 0


def _stop(number: int, _: FrameType | None) -> None:
    """So that every context ends its processes."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    # The flood's client runs in this process.
    gc.set_threshold(50_000, 20, 100)
    sys.exit(main())
