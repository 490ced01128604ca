"""`loadgen run` as a command: its exit statuses, and the file it leaves."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadgen.results import decode
from tests.loadgen.test_ledger_against_a_leaky_server import leaky

GATEWAY = (
    f"env ASGI_GATEWAY_DRAIN__PREDRAIN_S=0 {sys.executable} -m asgi_gateway serve --port 0"
    " --upstream {upstream}"
)
SMALL = ("--scenario", "burst", "--no-barrier", "--quiet")


def loadgen(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadgen", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return loadgen("run", *SMALL, *arguments)


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A gateway that offers batched polls."""
    monkeypatch.setenv("ASGI_GATEWAY_STATE__DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ASGI_GATEWAY_CLIENT__SAMPLE_USE_RETRIEVE_FUTURES", "true")


@pytest.mark.usefixtures("batched")
def test_all_at_once_behind_the_barrier_and_a_result_that_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    told = loadgen(
        "run",
        *("--scenario", "burst", "-n", "600", "--hold-s", "0.2", "--processes", "2"),
        *("--clones", "2", "--start", GATEWAY, "--json", str(file)),
    )
    assert told.returncode in (0, 3), told.stderr  # 3 on a machine that is busy with others
    result = decode(file.read_bytes())
    assert result.plan.style == "futures"
    assert result.outcomes.succeeded == 600
    assert result.doubled.total == result.doubled.upstream == 0
    assert [phase.name for phase in result.phases] == ["submit", "hold", "deliver"]
    assert result.upstream is not None
    assert (result.upstream.samples, result.upstream.missing) == (600, 0)
    assert result.traffic.acknowledged == 600
    assert result.traffic.polls_overdue == 0
    assert result.server is not None
    assert result.server.cpu_ms_per_sample is not None
    for label, value in (("succeeded", "600"), ("lost", "0"), ("doubled", "0")):
        assert re.search(rf"^  {label} +{value}$", told.stdout, re.MULTILINE), told.stdout
    assert result.upstream.ceiling_per_s is not None
    assert result.upstream.ceiling_per_s > 100
    assert "a second on cores of its own" in told.stdout
    assert result.server.lag_max_ms is not None
    assert result.server.gc_pause_s is not None
    assert result.server.gc_collections is not None


def test_one_poll_a_sample_with_drawn_lengths_and_abandoned_polls(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    told = run(
        *("-n", "300", "--style", "future", "--concurrency", "100", "--abandon", "0.3"),
        *("--abandon-within-s", "0.1", "--output-tokens", "1:300:log", "--start", GATEWAY),
        *("--upstream-args", "--delay-s 0.2", "--json", str(file)),
    )
    assert told.returncode in (0, 3), told.stderr
    result = decode(file.read_bytes())
    assert result.outcomes.succeeded == 300
    assert result.doubled.total == 0
    assert result.traffic.polls_abandoned > 30
    assert max(result.series.in_flight) <= 100


def test_what_the_stand_in_has_forgotten_is_said_and_is_not_missing(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    told = run(
        *("-n", "60", "--style", "future", "--start", GATEWAY, "--json", str(file)),
        *("--upstream-args", "--ids-kept 50"),
    )
    assert told.returncode in (0, 3), told.stderr
    result = decode(file.read_bytes())
    assert result.upstream is not None
    assert (result.upstream.samples, result.upstream.missing) == (50, 0)
    assert "note: the stand-in has forgotten 10 request ids" in told.stdout


def test_exit_status_1_where_samples_are_lost() -> None:
    with leaky({"lose": 10}) as url:
        told = run("-n", "20", "--url", url, "--within-s", "1.5")
    assert told.returncode in (1, 3)
    assert re.search("^  lost +2$", told.stdout, re.MULTILINE)
    if told.returncode == 1:
        assert "FAILED: the ledger is not clean (2 lost)" in told.stdout


def worker_of(pid: int) -> int:
    """The pid of the client process that a `loadgen run` has started."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = status.read_text().rpartition(")")[2].split()[1]
            command = status.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if parent == str(pid) and b"loadgen.worker" in command:
            return int(status.parent.name)
    raise LookupError(pid)


def test_exit_status_3_where_the_client_was_late() -> None:
    """Its process is stopped for a second: what was due meanwhile tells nothing of the server."""
    rate = ("--arrivals", "constant", "--rate", "100", "-n", "500")
    with leaky({}) as url:
        command = [sys.executable, "-m", "loadgen", "run", "--url", url, *SMALL[:3], *rate]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stderr is not None
            assert " of 500 done" in running.stderr.readline()
            worker = worker_of(running.pid)
            os.kill(worker, signal.SIGSTOP)
            time.sleep(1.0)
            os.kill(worker, signal.SIGCONT)
            told, _ = running.communicate(timeout=60)
    assert running.returncode == 3, told
    assert "INVALID: the server was not the limit (" in told
    assert "the client was late: " in told
    assert re.search("^  succeeded +500$", told, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--url", "http://127.0.0.1:1"), "Connection refused"),
        (("--url", "ftp://x"), "only http://host:port is spoken here"),
        (("--url", "http://127.0.0.1:1", "--style", "future", "-n", "0"), "samples=0"),
        (("--start", "/nowhere/server"), "/nowhere/server: No such file"),
        (("--start", "false"), "false: did not start"),
    ],
)
def test_exit_status_2_says_why(arguments: tuple[str, ...], text: str) -> None:
    told = run(*arguments)
    assert told.returncode == 2
    assert text in told.stderr


def test_a_server_without_batched_polls_says_so() -> None:
    with leaky({}) as url:
        told = run("-n", "5", "--url", url, "--style", "futures")
    assert told.returncode == 2
    assert "sample_use_retrieve_futures is off" in told.stderr


@pytest.mark.sdk
def test_the_real_sdk_under_the_same_ledger(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    told = run("-n", "40", "--style", "sdk", "--start", GATEWAY, "--json", str(file))
    assert told.returncode in (0, 3), told.stderr
    result = decode(file.read_bytes())
    assert result.outcomes.succeeded == 40
    assert result.doubled.total == 0
    assert result.environment.versions["tinker"]
    assert result.stages["e2e"].uncorrected.count == 40


@pytest.mark.sdk
def test_the_real_sdks_failures_and_wrong_results_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    with leaky({"short": 20, "swap": 15, "fail": 25}) as url:
        told = run(
            *("-n", "40", "--style", "sdk", "--url", url, "--oracle", "--concurrency", "1"),
            *("--json", str(file)),
        )
    assert told.returncode in (1, 3), told.stderr
    outcomes = decode(file.read_bytes()).outcomes
    assert outcomes.wrong == {"logprobs": 2, "identity": 2}
    assert outcomes.failed == {"user": 1}
    assert outcomes.succeeded == 35
