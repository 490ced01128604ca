"""Command line. Subcommands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from loadgen import preflight_command, upstream_command
from loadgen.flags import add_run


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit status is its own."""
    parser = argparse.ArgumentParser(
        prog="loadgen", description="Load harness for the sampling gateway."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    upstream_command.add_to(commands)
    add_run(commands, _run)
    preflight_command.add_to(commands)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from loadgen.command import command

    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
