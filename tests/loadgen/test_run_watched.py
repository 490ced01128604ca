"""`loadgen run` with all that goes on beside it: preflight, faults, the server from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from loadgen.results import decode
from tests.loadgen.test_ledger_against_a_leaky_server import leaky
from tests.loadgen.test_run_command import GATEWAY, run


def test_each_injected_kind_is_in_the_result_with_its_count(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    script = "503=0.1:#1-#7,reset_body:#8-#12,html:#13-#16,429:#17-#19,truncated:#20-#21"
    told = run(
        *("-n", "120", "--style", "future", "--start", GATEWAY, "--json", str(file)),
        *("--upstream-args", f"--gen-seconds 0.1 --max-num-seqs 20 --faults {script}"),
    )
    assert told.returncode in (0, 1, 3), told.stderr  # html fails for good; 3 on a busy machine
    result = decode(file.read_bytes())
    assert {fault.kind: fault.injected for fault in result.faults} == {
        "503": 7,
        "reset_body": 5,
        "html": 4,
        "429": 3,
        "truncated": 2,
    }
    assert result.outcomes.total == 120
    assert result.outcomes.lost == 0
    assert result.doubled.upstream == 0, "what faults explain is no double"
    assert result.preflight is not None
    assert result.preflight.ok
    assert {check.who for check in result.preflight.checks} == {"client", "server", "machine"}
    assert result.server is not None
    assert result.server.rss_peak is not None
    assert result.server.in_flight_peak is not None
    assert result.server.healthz is not None
    assert len(result.series.server_rss) == len(result.series.t)


def test_a_machine_that_is_too_small_is_refused_before_the_run() -> None:
    with leaky({}) as url:
        command = [sys.executable, "-m", "loadgen", "run", "--url", url, "-n", "20", "--quiet"]
        limited = ["sh", "-c", 'ulimit -n 300 && exec "$@"', "sh", *command]
        told = subprocess.run(limited, capture_output=True, text=True, timeout=60)
        assert told.returncode == 2
        assert "SHORT client   descriptors" in told.stderr
        assert told.stdout == ""
        anyway = [*limited, "--no-preflight", "--submitters", "50", "--within-s", "20"]
        assert subprocess.run(anyway, capture_output=True, timeout=60).returncode != 2
