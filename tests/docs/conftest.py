import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.processes import ROOT

DOCS = ROOT / "docs"


def built(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """`make docs` with other folders."""
    config = (ROOT / "mkdocs.yml").read_text()
    for old, new in (
        ("site_dir: build/site", f"site_dir: {site}"),
        ("docs_dir: docs", f"docs_dir: {docs}"),
        ("- docs/site_hooks.py", f"- {ROOT}/docs/site_hooks.py"),
        ("custom_dir: docs/theme", f"custom_dir: {ROOT}/docs/theme"),
    ):
        assert config.count(old) == 1, old
        config = config.replace(old, new)
    if docs != ROOT / "docs":
        config = config[: config.index("\nnav:")]
    file = site.with_suffix(".yml")
    file.write_text(config)
    command = next(
        line for line in (ROOT / "Makefile").read_text().splitlines() if "mkdocs" in line
    )
    assert "mkdocs build --strict " in command, "what is run here"
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    done = built(DOCS, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def module(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A program of docs/ by its name, which the test module has in PROGRAM."""
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module(request.module.PROGRAM)
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture
def page(tmp_path: Path, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test writes a page of its own."""
    (tmp_path / "Makefile").write_text("run: x ## it\n\ttrue\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return tmp_path / "page.md"
