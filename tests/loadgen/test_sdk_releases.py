"""`loadgen run --style sdk` with each released SDK in its own environment (make sdk-matrix)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadgen.results import decode
from tests.contract.sdks import install
from tests.loadgen.test_ledger_against_a_leaky_server import leaky
from tests.loadgen.test_run_command import GATEWAY, run

pytestmark = pytest.mark.matrix

ASKED = os.environ.get("SDKS", "").split() or install.VERSIONS


@pytest.fixture(params=[version for version in install.VERSIONS if version in ASKED])
def sdk(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A release and its interpreter."""
    version = str(request.param)
    install.install(version)
    return version, str(install.interpreter(version))


@pytest.mark.parametrize("batched", ["false", "true"])
def test_every_sample_succeeds_in_two_processes_with_clones(
    sdk: tuple[str, str], batched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASGI_GATEWAY_CLIENT__SAMPLE_USE_RETRIEVE_FUTURES", batched)
    monkeypatch.setenv("ASGI_GATEWAY_STATE__DIR", str(tmp_path / "state"))
    version, python = sdk
    file = tmp_path / "result.json"
    told = run(
        *("-n", "200", "--style", "sdk", "--sdk-python", python, "--start", GATEWAY),
        *("--processes", "2", "--sessions", "2", "--clones", "2", "--json", str(file)),
    )
    assert told.returncode in (0, 3), told.stderr  # 3 on a busy machine
    result = decode(file.read_bytes())
    assert result.environment.versions["tinker"] == version
    assert (result.outcomes.succeeded, result.outcomes.total) == (200, 200)
    assert result.doubled.total == 0


def test_what_a_leaky_server_does_is_counted(sdk: tuple[str, str], tmp_path: Path) -> None:
    _, python = sdk
    file = tmp_path / "result.json"
    with leaky({"short": 20, "swap": 15, "fail": 25, "refuse": 31, "lose": 37}) as url:
        told = run(
            *("-n", "40", "--style", "sdk", "--sdk-python", python, "--url", url, "--oracle"),
            *("--concurrency", "1", "--within-s", "20", "--json", str(file)),
        )
    assert told.returncode in (1, 3), told.stderr
    outcomes = decode(file.read_bytes()).outcomes
    assert outcomes.wrong == {"identity": 2, "logprobs": 1}
    assert outcomes.failed == {"user": 1}
    assert outcomes.refused == {"422": 1}
    assert (outcomes.succeeded, outcomes.lost) == (31, 4), "one is lost, three wait behind it"
