"""Sources and a command line that know nothing of the machine's settings."""

import os
from pathlib import Path

import pytest

from tests.support.command_line import Cli
from tests.support.settings_sources import Sources


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line, in an environment that says nothing of the gateway."""
    for name in list(os.environ):
        if name.startswith("ASGI_GATEWAY_"):
            monkeypatch.delenv(name)
    return Cli(capsys)
