"""Writes docs/cli.md from the parsers of `asgi-gateway` and `loadgen`.

    python docs/cli_reference.py [--check]

With --check nothing is written: it says where the page is stale.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from generated import run, stale

from asgi_gateway.__main__ import FLAGS
from asgi_gateway.__main__ import parser as gateway
from loadgen.__main__ import parser as loadgen

PAGE: Final = Path(__file__).resolve().parent / "cli.md"
HEAD: Final = """\
# Commands

Written by `docs/cli_reference.py` from the commands' own parsers; each says the same with `--help`.
Both are also `python -m asgi_gateway` and `python -m loadgen`. What the flags of `serve` leave out
is in the [settings](settings.md), and loads, reports and exit statuses in
[the load harness](loadgen.md).
"""


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Every parser that parses arguments and not the name of another."""
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for command in action.choices.values():
            yield from commands(command)


def rows(parser: argparse.ArgumentParser, settings: dict[str, str]) -> Iterator[str]:
    """One for each argument; settings: what some of them set."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        said = (action.help or "") % {**vars(action), "prog": parser.prog}
        if action.dest in settings:
            path = settings[action.dest]
            said += f"; `{path}`"
        if action.required and action.option_strings:
            said = f"{said}; needed".removeprefix("; ")
        yield f"| {_shown(action)} | {_cell(said)} |"


def _shown(action: argparse.Action) -> str:
    """As it is typed."""
    value = ""
    if action.nargs != 0:
        if action.choices is not None:
            value = "{" + ",".join(map(str, action.choices)) + "}"
        if action.metavar is not None or not value:
            value = str(action.metavar or action.dest.upper())
        if action.nargs == "?":
            value = f"[{value}]"
        elif action.nargs in ("*", "+"):
            value = f"{value}..."
    if not action.option_strings:
        return f"`{_cell(value)}`"
    last = f"{action.option_strings[-1]} {value}".strip()
    return ", ".join(f"`{_cell(name)}`" for name in (*action.option_strings[:-1], last))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rendered() -> str:
    parts = [HEAD.rstrip()]
    for program, settings in ((gateway(), FLAGS), (loadgen(), {})):
        parts += [f"## {program.prog}", f"{(program.description or '').rstrip('.')}."]
        of: dict[tuple[str, ...], str] = {}
        for command in commands(program):
            own = list(rows(command, settings))
            parts.append(f"### {command.prog}")
            said = " ".join((command.description or "").split())
            if said:
                parts.append(f"{said[0].upper()}{said[1:].rstrip('.')}.")
            same = of.setdefault(tuple(own), command.prog)
            if same != command.prog:
                parts.append(f"Arguments are those of `{same}`.")
            elif own:
                parts.append("\n".join(["| argument | |", "|---|---|", *own]))
    return "\n\n".join(parts) + "\n"


def problems() -> list[str]:
    """Whether the page is stale."""
    return stale(PAGE, rendered())


if __name__ == "__main__":
    raise SystemExit(run(PAGE, rendered, problems))
