"""Writes the tables of docs/settings.md from the schema, the text below each field included.

    python docs/settings_reference.py [--check]

With --check nothing is written: it says where the page is stale.
"""

import argparse
import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from generated import run, stale

from asgi_gateway.__main__ import FLAGS, parser
from asgi_gateway.configuration import ENVIRONMENT_PREFIX, leaves, value_at
from asgi_gateway.settings import Settings
from asgi_gateway.settings.section import reloads

PAGE: Final = Path(__file__).resolve().parent / "settings.md"
BEGIN: Final = "<!-- The tables: written by docs/settings_reference.py. -->"
END: Final = "<!-- The end of the tables. -->"
HEAD: Final = "| setting | default | value | reloads | meaning |\n|---|---|---|---|---|"


def texts(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted path of every field that has a text below it, and the text on one line."""
    (section,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(section, ast.ClassDef)
    for field, below in zip(section.body, section.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            yield prefix + field.target.id, " ".join(below.value.value.split())
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from texts(hint, f"{prefix}{name}.")


def flags() -> dict[str, str]:
    """Path -> flag of `serve`."""
    commands = next(action for action in parser()._actions if action.dest == "command")
    assert isinstance(commands, argparse._SubParsersAction)
    found = {}
    for action in commands.choices["serve"]._actions:
        if action.dest in FLAGS:
            repeatable = ", repeatable" if "append" in type(action).__name__.lower() else ""
            found[FLAGS[action.dest]] = f"`{action.option_strings[-1]}`{repeatable}"
    return found


def shown_default(value: object) -> str:
    """As TOML has it; nothing where the default is that there is none."""
    match value:
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return "`[]`"
        case str():
            return f'`"{value}"`'
    return f"`{value}`"


def kind_of(path: str, hint: Any) -> str:
    """What values are taken, in words."""
    bounds: dict[str, Any] = {}
    while hasattr(hint, "__metadata__"):
        for meta in hint.__metadata__:
            if isinstance(meta, msgspec.Meta):
                names = ("gt", "ge", "le", "min_length")
                bounds |= {n: v for n in names if (v := getattr(meta, n)) is not None}
        hint = hint.__origin__
    if get_origin(hint) in (Union, types.UnionType):
        (given,) = (each for each in get_args(hint) if each is not type(None))
        return kind_of(path, given)
    if get_origin(hint) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) in (tuple, dict):
        return "list of texts" if get_origin(hint) is tuple else "table of texts"
    if hint is bool:
        return "`true` or `false`"
    if hint is str:
        least = bounds.get("min_length")
        return f"text of {least} characters or more" if least else "text"
    return f"{_unit(path, hint)}{_range(bounds)}"


def _unit(path: str, hint: type) -> str:
    name = path.rpartition(".")[2]
    if name.endswith(("_s", "_sec")):
        return "seconds" if hint is float else "whole seconds"
    if "bytes" in name:
        return "bytes"
    return "number" if hint is float else "whole number"


def _range(bounds: dict[str, Any]) -> str:
    least = "above" if "gt" in bounds else "from"
    low = bounds.get("gt", bounds.get("ge"))
    high = bounds.get("le")
    if low is None:
        return ""
    return f", {least} {low} to {high}" if high is not None else f", {least} {low}"


def tables() -> str:
    """One for each section, the settings outside of any last."""
    said, given = dict(texts(Settings)), flags()
    by_section: dict[str, list[str]] = {}
    for path, hint in leaves(Settings):
        section, _, _ = path.rpartition(".")
        variable = ENVIRONMENT_PREFIX + path.upper().replace(".", "__")
        ways = [f"`{path}`", f"`{variable}`", *([given[path]] if path in given else [])]
        cells = (
            "<br>".join(ways),
            shown_default(value_at(Settings(), path)),
            kind_of(path, hint),
            "yes" if reloads(hint) else "no",
            said.get(path, "").replace("|", "\\|"),
        )
        by_section.setdefault(section, []).append(f"| {' | '.join(cells)} |")
    hints = get_type_hints(Settings)
    parts = []
    for section in sorted(by_section, key=lambda name: not name):
        # Its own: what a class inherits is said of another.
        words = hints[section].__dict__.get("__doc__") if section else None
        parts.append(f"## {section}" if section else "## Outside of any section")
        parts += [" ".join(words.split())] if words else []
        parts.append("\n".join([HEAD, *by_section[section]]))
    return "\n\n".join(parts)


def rendered(page: str) -> str:
    """The page with its tables as they should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def problems() -> list[str]:
    """What is wrong with the page."""
    said = dict(texts(Settings))
    found = [
        f"asgi_gateway/settings: {path} has no text below it, which docs/settings.md shows"
        for path, _ in leaves(Settings)
        if not said.get(path)
    ]
    page = PAGE.read_text()
    if BEGIN not in page or END not in page:
        found.append(f"docs/settings.md: the lines {BEGIN!r} and {END!r} are missing")
    elif rendered(page) != page:
        found += stale(PAGE, rendered(page))
    named = set(re.findall(r"^- `([a-z_.]+)`:", page, re.MULTILINE))
    found += [
        f"docs/settings.md: {path} is said not to be there"
        for path, _ in leaves(Settings)
        if path in named
    ]
    return found


if __name__ == "__main__":
    raise SystemExit(run(PAGE, lambda: rendered(PAGE.read_text()), problems))
