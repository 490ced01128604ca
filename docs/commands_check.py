"""What a reader would copy out of a page: flags, make's targets, settings, TOML, names of tests.

Each `wrong_*` takes a page and yields its problems; docs/check.py runs them.
"""

import argparse
import re
import shlex
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from asgi_gateway.__main__ import parser as gateway
from asgi_gateway.access import keys
from asgi_gateway.configuration import gather, leaves
from asgi_gateway.settings import AccessSettings, Settings, SettingsError
from loadgen.__main__ import parser as loadgen
from loadgen.report.thresholds import ThresholdError, bounds

ROOT = Path(__file__).resolve().parent.parent
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```(?:sh|bash|console)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4,}(\S.*(?:(?<=\\)\n.*)*)$", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
MAKE = re.compile(r"^(?:[A-Z_]+=\S+ )*make ([a-z][a-z-]*)")
TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
VARIABLE = re.compile(r"\bASGI_GATEWAY_([A-Z0-9]+(?:_[A-Z0-9]+)*__[A-Z0-9_]*[A-Z0-9])\b")
SETTING = re.compile(r"`([a-z]+\.[a-z_]+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")

SETTINGS = frozenset(path for path, _ in leaves(Settings))
# Dotted names that look like settings: an attribute of spans, rows of the instruction counts, and
# what pages say is not there yet.
OTHERS = frozenset(
    (
        "server.address",
        "store.accept",
        "store.cycle",
        "upstream.features",
    )
)
SECTIONS = frozenset(path.split(".")[0] for path in SETTINGS if "." in path)


def code(page: Path) -> Iterator[str]:
    """Every piece of code of a page that may be a command, on one line each."""
    text = page.read_text()
    for block in FENCED.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    for command in INDENTED.findall(text):
        yield command.replace("\\\n", " ")
    yield from INLINE.findall(text)


def parsers() -> dict[str, dict[str, argparse.ArgumentParser]]:
    """Program -> command -> its parser."""
    found = {}
    for program in (gateway(), loadgen()):
        (commands,) = (a for a in program._actions if isinstance(a, argparse._SubParsersAction))
        found[program.prog] = dict(commands.choices)
    return found


PROGRAMS = parsers()


def wrong_flags(page: Path) -> Iterator[str]:
    """Commands and flags of ours that there are not."""
    if page.name == "CHANGELOG.md":  # of every release
        return
    for line in code(page):
        for problem in unknown(line):
            yield f"{page.relative_to(ROOT)}: {problem}"


def unknown(line: str) -> Iterator[str]:
    """What our programs would refuse of a command line, quoted command lines in it included."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # prose with an apostrophe
        return
    options: argparse.ArgumentParser | None = None
    for option, before, word in zip(["", "", *words], ["", *words], words, strict=False):
        program = before.rpartition("/")[2]
        if option == "-m":
            program = program.replace("_", "-")
        if program in PROGRAMS and re.fullmatch("[a-z-]+", word):
            options = PROGRAMS[program].get(word)
            if options is None:
                yield f"{program} has no command {word}: {line[:80]}"
        elif word in ("|", "&&", ";", "&"):
            options = None
        elif " " in word:
            yield from unknown(word)
        elif options is not None and re.match("--?[a-z]", word):
            name = word.partition("=")[0]
            if name not in options._option_string_actions:
                yield f"{options.prog} has no {name}: {line[:80]}"


def wrong_targets(page: Path) -> Iterator[str]:
    """`make X` without such a target."""
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
    for line in code(page):
        match = MAKE.match(line.strip())
        if match and match[1] not in targets:
            yield f"{page.relative_to(ROOT)}: there is no make {match[1]}"


def wrong_settings(page: Path) -> Iterator[str]:
    """Settings by their dotted name or their variable that there are not."""
    if page.name == "CHANGELOG.md":
        return
    text = page.read_text()
    named = {name for name in SETTING.findall(text) if name.split(".")[0] in SECTIONS}
    named |= {name.lower().replace("__", ".") for name in VARIABLE.findall(text)}
    for name in sorted(named - SETTINGS - OTHERS):
        yield f"{page.relative_to(ROOT)}: there is no setting {name}"


def wrong_toml(page: Path) -> Iterator[str]:
    """Snippets that the gateway or the harness would refuse: settings, keys, thresholds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "snippet.toml"
        for snippet in TOML.findall(page.read_text()):
            file.write_text(snippet)
            for problem in refused(file):
                yield f"{page.relative_to(ROOT)}: a snippet is refused: {problem}"


def refused(file: Path) -> list[str]:
    """Why, by whoever the file is for."""
    try:
        content = tomllib.loads(file.read_text())
        if "thresholds" in content:
            bounds([], [file])
        elif any(isinstance(table, dict) and "sha256" in table for table in content.values()):
            keys.load(AccessSettings(keys_file=str(file)))
        else:
            return list(gather({}, {}, file).problems)
    except (tomllib.TOMLDecodeError, ThresholdError) as error:
        return [str(error)]
    except SettingsError as error:
        return list(error.problems)
    return []


def wrong_tests(page: Path) -> Iterator[str]:
    """Tests that are pointed at and are not there."""
    if page.name == "CHANGELOG.md":
        return
    for name, test in sorted(set(TEST.findall(page.read_text()))):
        path = ROOT / name
        if not path.exists():
            yield f"{page.relative_to(ROOT)}: there is no {name}"
        elif test and not re.search(rf"^(async )?def {test}\(", path.read_text(), re.MULTILINE):
            yield f"{page.relative_to(ROOT)}: {name} has no {test}"


CHECKS = (wrong_flags, wrong_targets, wrong_settings, wrong_toml, wrong_tests)
