"""What systemd's own tools say about the unit."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shipped import FOLDER

pytestmark = pytest.mark.system

# In tenths, as systemd-analyze counts: 0 is locked in, 100 unconfined; 20 ends what it calls OK.
EXPOSED_AT_MOST = 20


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """A copy whose program exists here: verify looks."""
    text = (FOLDER / "asgi-gateway.service").read_text()
    assert text.count("/opt/asgi-gateway/bin/asgi-gateway") == 1
    copy = tmp_path / "asgi-gateway.service"
    copy.write_text(text.replace("/opt/asgi-gateway/bin/asgi-gateway", sys.executable))
    return copy


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_unit_is_valid(unit: Path) -> None:
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_misspelt_line_would_be_told(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("LimitNOFILE=", "LimitNOFILES="))
    assert "LimitNOFILES" in analyze("verify", str(unit)).stderr


def test_its_drop_in_for_several_hosts_is_valid(unit: Path) -> None:
    """And is read: a misspelt line of it is told."""
    folder = unit.with_name(f"{unit.name}.d")
    folder.mkdir()
    (folder / "several.conf").write_text((FOLDER / "several.conf").read_text())
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    (folder / "several.conf").write_text("[Service]\nRestartSecs=2\n")
    assert "RestartSecs" in analyze("verify", str(unit)).stderr


def test_the_unit_is_confined(unit: Path) -> None:
    done = analyze("security", "--offline=yes", f"--threshold={EXPOSED_AT_MOST}", str(unit))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"exposure level for asgi-gateway.service: [01]\.\d OK", done.stdout)
