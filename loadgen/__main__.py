"""Command line. Subcommands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from loadgen import preflight_command, upstream_command
from loadgen.arguments import seconds, whole
from loadgen.flags import add_run
from loadgen.report import commands as report


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit status is its own."""
    arguments = parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def parser() -> argparse.ArgumentParser:
    """Of all subcommands."""
    made = argparse.ArgumentParser(
        prog="loadgen", description="Load harness for the sampling gateway."
    )
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    upstream_command.add_to(commands)
    add_run(commands, _run)
    report.add(commands)
    preflight_command.add_to(commands)
    _add_cost(commands)
    return made


def _run(arguments: argparse.Namespace) -> int:
    from loadgen.command import command

    return command(arguments)


def _add_cost(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "cost",
        help="measure what the client itself costs",
        description="CPU a sample of the client against two of the leanest POSTs, in turns.",
    )
    parser.add_argument("--style", choices=("future", "futures"), default="future")
    parser.add_argument("--samples", type=whole(100), default=2_000, metavar="N")
    parser.add_argument("--turns", type=whole(1), default=25, metavar="N", help="at most")
    parser.add_argument(
        "--within-s",
        type=seconds,
        default=40.0,
        metavar="S",
        help="begin no turn later, five apart (default: %(default)g)",
    )
    parser.set_defaults(run=_cost)


def _cost(arguments: argparse.Namespace) -> int:
    from loadgen.cost import report

    return report(arguments.style, arguments.samples, arguments.turns, arguments.within_s)


if __name__ == "__main__":
    sys.exit(main())
