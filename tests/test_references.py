"""The generated pages of docs: they say what the code says, and their generators notice if not."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from asgi_gateway.__main__ import FLAGS, parser
from asgi_gateway.configuration import leaves
from asgi_gateway.settings import Settings
from asgi_gateway.settings.section import reloads

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture
def reference(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A generator, which stands beside its page."""
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module(request.param)
    finally:
        sys.path.remove(str(DOCS))


def rows() -> dict[str, list[str]]:
    """Cells of the tables of settings by the setting's path."""
    found = {}
    for line in (DOCS / "settings.md").read_text().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            found[cells[0].split("`")[1]] = cells
    return found


def test_the_page_says_of_every_setting_whether_it_reloads() -> None:
    said = {path: cells[3] for path, cells in rows().items()}
    assert said == {path: "yes" if reloads(hint) else "no" for path, hint in leaves(Settings)}
    assert set(said.values()) == {"yes", "no"}


def test_a_row_has_the_ways_the_default_and_the_range() -> None:
    cells = rows()
    assert cells["upstream.urls"][0] == (
        "`upstream.urls`<br>`ASGI_GATEWAY_UPSTREAM__URLS`<br>`--upstream`, repeatable"
    )
    assert cells["poll.hold_s"][1:3] == ["`30.0`", "seconds, above 0 to 40"]
    assert cells["store.max_bytes"][1:3] == ["", "bytes, from 1"]
    assert cells["missing_logprobs"][1:3] == ['`"fail"`', "`fail` or `nan`"]
    assert cells["id_key"][2] == "text of 16 characters or more"
    assert cells["client.sample_cancel_enabled"][1] == "`true`"
    assert all(each[4] for each in cells.values()), "what it means"


def test_every_flag_gives_a_setting_that_is_there() -> None:
    arguments = vars(parser().parse_args(["serve"]))
    # The last is the supervisor's, to its workers.
    assert set(FLAGS) == set(arguments) - {"command", "config", "as_worker"}
    assert all(arguments[name] is None for name in FLAGS), "not given is not a value"
    assert set(FLAGS.values()) <= {path for path, _ in leaves(Settings)}


@pytest.mark.parametrize(
    ("reference", "change"),
    [
        ("settings_reference", ("`30.0`", "`31.0`")),
        ("settings_reference", (" | yes | ", " | no | ")),
        ("settings_reference", ("how long a poll is held", "how long it is held")),
        ("settings_reference", ("`--port`", "`--prot`")),
        ("settings_reference", ("<!-- The end of the tables. -->", "")),
        ("settings_reference", ("- `upstream.features`:", "- `store.max_bytes`:")),
        ("cli_reference", ("--base-model", "--model")),
        ("cli_reference", ("### loadgen preflight", "### loadgen check")),
    ],
    indirect=["reference"],
)
def test_a_stale_page_is_noticed(
    reference: ModuleType,
    change: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page: Path = reference.PAGE
    assert reference.problems() == []
    text = page.read_text()
    assert change[0] in text
    stale = tmp_path / page.name
    stale.write_text(text.replace(*change, 1))
    monkeypatch.setattr(reference, "PAGE", stale)
    assert reference.problems()


@pytest.mark.parametrize("script", ["settings_reference.py", "cli_reference.py"])
def test_check_is_a_command(script: str) -> None:
    """At any width of the terminal."""
    ran = subprocess.run(
        [sys.executable, str(DOCS / script), "--check"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "40"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
