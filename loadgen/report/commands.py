"""The subcommands report, compare and validate. What they need is imported when they run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from loadgen.results import Result

USAGE: Final = 2
STATUSES: Final = "Exit status: 0 ok, 1 a threshold failed, 2 usage, 3 the run is invalid."


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_report(commands)
    _add_compare(commands)
    _add_validate(commands)


def add_thresholds(parser: argparse.ArgumentParser) -> None:
    """The flags that `run` and `report` share."""
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="EXPR",
        help="fail unless it holds, as in 'e2e.p99 < 2s' or 'failed == 0'; repeatable",
    )
    parser.add_argument(
        "--thresholds",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help='a TOML file: thresholds = ["e2e.p99 < 2s"]; repeatable',
    )


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "report", help="show a result again", description=f"Show a result again. {STATUSES}"
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page of one result")
    parser.add_argument(
        "--markdown", action="store_true", help="one table of all, beside the public figures"
    )
    parser.add_argument(
        "--figures", action="store_true", help="list what thresholds can name, with its value"
    )
    add_thresholds(parser)
    parser.set_defaults(run=_guarded(_report), parser=parser)


def _add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare results A with results B",
        description="Whether B is worse than A. Give A1 B1 A2 B2 and so on, each pair run by"
        f" turns, or let it run both. {STATUSES}",
    )
    add = parser.add_argument
    add("results", nargs="*", type=Path, metavar="RESULT.json")
    add("--a", nargs="+", default=[], type=Path, metavar="A.json", help="all results of A")
    add("--b", nargs="+", default=[], type=Path, metavar="B.json", help="all of B, in that order")
    add("--command-a", metavar="CMD", help="how to make a result of A; {json} is its file")
    add("--command-b", metavar="CMD", help="how to make a result of B; {json} is its file")
    add("--runs", type=_whole, default=5, metavar="N", help="of each command (default: 5)")
    add("--timeout-s", type=float, default=1_800.0, metavar="S", help="of one run (default: 1800)")
    add("--keep", type=Path, metavar="DIR", help="where results of the commands stay")
    add("--figure", action="append", default=[], metavar="NAME", help="compare this; repeatable")
    add(
        "--bar",
        action="append",
        default=[],
        metavar="[NAME=]SHARE",
        help="how much worse is allowed, as in 5%% or e2e.p99=10%% (default: 5%%)",
    )
    add("--seed", type=int, default=1, metavar="N", help="of the bootstrap (default: 1)")
    add("--json", type=Path, metavar="FILE", help="write the comparison")
    add("--markdown", type=Path, metavar="FILE", help="append it as a table to this file")
    parser.set_defaults(run=_guarded(_compare), parser=parser)


def _add_validate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "validate", help="check result files against the schema", description="Check result files."
    )
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT.json")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema")
    parser.set_defaults(run=_guarded(_validate), parser=parser)


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """What the user can put right is a line on stderr and status 2."""

    def guarded(arguments: argparse.Namespace) -> int:
        from loadgen.report.compare import CompareError
        from loadgen.report.extra import MissingExtra
        from loadgen.report.figures import UnknownFigure
        from loadgen.report.thresholds import ThresholdError
        from loadgen.results import SchemaError

        try:
            return run(arguments)
        except (
            *(CompareError, MissingExtra, UnknownFigure, ThresholdError, SchemaError),
            OSError,
        ) as error:
            print(f"loadgen {arguments.parser.prog.split()[-1]}: {error}", file=sys.stderr)
            return USAGE

    return guarded


def _report(arguments: argparse.Namespace) -> int:
    from loadgen.report.alternate import load
    from loadgen.report.figures import values
    from loadgen.report.page import page
    from loadgen.report.table import lines, markdown
    from loadgen.report.thresholds import apply, bounds

    if arguments.html and len(arguments.results) > 1:
        arguments.parser.error("argument --html: shows one result, several are given")
    results = [load(path) for path in arguments.results]
    asked = bool(arguments.threshold or arguments.thresholds)
    for result in results:
        wanted = bounds(arguments.threshold, arguments.thresholds, result.plan)
        # Without any, the verdict stays as the run gave it.
        if asked:
            apply(result, wanted)
    if arguments.markdown:
        print("\n".join(markdown(results)))
    for result in results:
        if arguments.figures:
            print("\n".join(f"{name} = {value}" for name, value in values(result)))
        elif not arguments.markdown:
            print("\n".join(lines(result)))
    if arguments.html:
        arguments.html.write_text(page(results[0]), encoding="utf-8")
    statuses = [result.verdict.exit_status for result in results]
    return max(statuses)


def _compare(arguments: argparse.Namespace) -> int:
    import msgspec

    from loadgen.report.changes import lines, markdown
    from loadgen.report.compare import BAR, DEFAULT, compare
    from loadgen.report.figures import kind_of

    bars, bar = _bars(arguments.bar, BAR)
    wanted = [*(arguments.figure or DEFAULT), *(name for name in bars if name not in DEFAULT)]
    for name in {*wanted, *bars}:
        kind_of(name)
    first, second = _sides(arguments)
    made = compare(first, second, list(dict.fromkeys(wanted)), bar, bars, arguments.seed)
    print("\n".join(lines(made)))
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    if arguments.markdown:
        with arguments.markdown.open("a", encoding="utf-8") as file:
            file.write("\n".join(markdown(made)) + "\n")
    return made.exit_status


def _bars(texts: list[str], default: float) -> tuple[dict[str, float], float]:
    from loadgen.report.compare import share

    bars = {}
    for text in texts:
        name, separator, value = text.rpartition("=")
        if separator:
            bars[name.strip()] = share(value)
        else:
            default = share(value)
    return bars, default


def _sides(arguments: argparse.Namespace) -> tuple[list[Result], list[Result]]:
    import tempfile

    from loadgen.report.alternate import load, run_alternately, words
    from loadgen.report.compare import CompareError

    commands = (arguments.command_a, arguments.command_b)
    ways = [bool(arguments.results), bool(arguments.a or arguments.b), any(commands)]
    if sum(ways) != 1:
        raise CompareError("give either results, or --a and --b, or --command-a and --command-b")
    if arguments.results:
        if len(arguments.results) % 2:
            raise CompareError(f"{len(arguments.results)} results; give pairs: A1 B1 A2 B2")
        results = [load(path) for path in arguments.results]
        return results[::2], results[1::2]
    if not any(commands):
        return [load(path) for path in arguments.a], [load(path) for path in arguments.b]
    if not all(commands):
        raise CompareError("--command-a and --command-b go together")
    with tempfile.TemporaryDirectory(prefix="loadgen-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return run_alternately(
            {"A": words(commands[0], "A"), "B": words(commands[1], "B")},
            arguments.runs,
            folder,
            arguments.timeout_s,
            lambda text: print(text, file=sys.stderr, flush=True),
        )


def _validate(arguments: argparse.Namespace) -> int:
    import msgspec

    from loadgen.report.alternate import load
    from loadgen.report.compare import CompareError
    from loadgen.report.validation import problems
    from loadgen.results import Result

    if arguments.schema:
        schema = msgspec.json.schema(Result)
        print(msgspec.json.format(msgspec.json.encode(schema), indent=1).decode())
    elif not arguments.results:
        arguments.parser.error("give files, or --schema")
    found = 0
    for path in arguments.results:
        try:
            said = list(problems(load(path)))
        except CompareError as error:
            print(error, file=sys.stderr)
            found += 1
            continue
        for problem in said:
            print(f"{path}: {problem}", file=sys.stderr)
        found += len(said)
    return 1 if found else 0
