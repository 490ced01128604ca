"""What `make wheel` makes: whole packages, nothing else, metadata that says what they need."""

import configparser
import email
import importlib
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.shipped import PROJECT

STEM = f"asgi_gateway-{PROJECT['version']}"
INFO = f"{STEM}.dist-info"


def build(source: Path, target: Path, *formats: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    subprocess.run(
        command + [f"--target={kind}" for kind in formats],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=100,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    build(ROOT, target, "wheel", "sdist")
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(built / f"{STEM}-py3-none-any.whl") as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return email.message_from_bytes(wheel.read(f"{INFO}/METADATA"))


def test_the_packages_are_in_it_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    sources = {
        str(path.relative_to(ROOT))
        for package in ("asgi_gateway", "loadgen")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wheel.namelist() if not name.startswith(f"{INFO}/")} == sources


def test_what_is_no_python(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    assert {
        "asgi_gateway/py.typed",
        "loadgen/py.typed",
        "asgi_gateway/codec/sampling_pb2.pyi",
        "loadgen/report/assets/page.js",
        "loadgen/report/assets/uPlot.iife.min.js",
        f"{INFO}/licenses/LICENSE",
        f"{INFO}/licenses/loadgen/report/assets/uPlot.LICENSE",
    } <= held
    assert wheel.read(f"{INFO}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_it_says_what_it_needs(metadata: Message) -> None:
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {names(line) for line in needed} == {names(line) for line in PROJECT["dependencies"]}
    assert len(needed) <= 8
    assert metadata.get_all("Provides-Extra") == list(PROJECT["optional-dependencies"])
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["Description-Content-Type"] == "text/markdown"


def names(requirement: str) -> str:
    return re.split(r"[<>=;\[ ]", requirement)[0]


def test_its_commands_are_functions(wheel: zipfile.ZipFile) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(f"{INFO}/entry_points.txt").decode())
    assert dict(parser["console_scripts"]) == PROJECT["scripts"]
    for target in PROJECT["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_the_version_stands_in_one_place() -> None:
    """The packages ask their own metadata."""
    version = PROJECT["version"]
    for package in ("asgi_gateway", "loadgen"):
        for path in (ROOT / package).rglob("*.py"):
            assert f'"{version}"' not in path.read_text(), path


def test_the_source_distribution(built: Path, tmp_path: Path) -> None:
    """Has what the tests and the lock need, nothing that a build left, and makes the same wheel."""
    with tarfile.open(built / f"{STEM}.tar.gz") as opened:
        held = {name.removeprefix(f"{STEM}/") for name in opened.getnames()}
        opened.extractall(tmp_path, filter="data")
    assert {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "Makefile",
        "pyproject.toml",
        "requirements.lock",
        "protos/generate.py",
        "docs/deploy.md",
        "examples/deploy/Containerfile",
        "tests/conftest.py",
    } <= held
    litter = {".venv", ".git", "build", "dist", ".pytest_cache", ".mypy_cache", "__pycache__"}
    assert not [name for name in held if litter & set(name.split("/"))]
    build(tmp_path / STEM, tmp_path, "wheel")
    name = f"{STEM}-py3-none-any.whl"
    assert (tmp_path / name).read_bytes() == (built / name).read_bytes()
