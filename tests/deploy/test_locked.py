"""examples/deploy/locked.py: what some packages need, cut out of the lock."""

import re
import subprocess
import sys
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.processes import ROOT
from tests.support.shipped import FOLDER, PROJECT


def cut(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, FOLDER / "locked.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def names(lock: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))


def metadata(wanted: list[str], *, every_marker: bool) -> set[str]:
    """All that installed packages say they need, with whatever those need."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        requirement = waiting.pop()
        marker = requirement.marker
        needed = marker is None or marker.evaluate({"extra": ""})
        if not needed and (not every_marker or "extra" in str(marker)):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found:
            found.add(name)
            waiting += [Requirement(text) for text in requires_of(name)]
    return found


def requires_of(name: str) -> list[str]:
    try:
        return requires(name) or []
    except ModuleNotFoundError:  # of another system or Python
        return []


def test_the_core_is_what_the_packages_themselves_say() -> None:
    status, text, _ = cut("requirements.lock")
    assert status == 0
    core = names(text)
    assert metadata(PROJECT["dependencies"], every_marker=False) <= core
    assert core <= metadata(PROJECT["dependencies"], every_marker=True)
    assert "tinker" not in core


def test_every_line_of_it_is_the_locks() -> None:
    """Versions, markers and hashes: pip --require-hashes wants one for each."""
    _, text, _ = cut("requirements.lock")
    assert set(text.splitlines()) <= set((ROOT / "requirements.lock").read_text().splitlines())
    for entry in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in entry, entry


def test_what_builds_the_wheel() -> None:
    status, text, _ = cut("requirements.lock", "hatchling")
    assert status == 0
    assert metadata(["hatchling"], every_marker=False) <= names(text)
    assert "aiohttp" not in names(text)


def test_a_package_that_is_not_there() -> None:
    assert cut("requirements.lock", "hatchlin") == (
        2,
        "",
        "locked.py: requirements.lock has no hatchlin\n",
    )


def test_without_a_lock() -> None:
    status, _, said = cut()
    assert (status, said) == (2, "usage: locked.py LOCK [PACKAGE]...\n")
