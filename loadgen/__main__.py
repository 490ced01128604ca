"""Command line. Subcommands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from loadgen import upstream_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit status is its own."""
    parser = argparse.ArgumentParser(
        prog="loadgen", description="Load harness for the sampling gateway."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    upstream_command.add_to(commands)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
