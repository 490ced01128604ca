"""`loadgen run` with all that goes on beside it: preflight, faults, the server from outside."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.results import decode
from tests.loadgen.test_ledger_against_a_leaky_server import leaky
from tests.loadgen.test_run_command import GATEWAY, run

SUCCEEDED = (
    *("429", "500", "502", "503", "reset_before", "reset_body", "close_before", "close_midway"),
    *("abort", "fewer_choices", "drip=0.3", "refuse=0.2"),
)
"""Faults that the gateway answers with another try, or that only take time."""

FAILED = ("html", "truncated", "null", "nan", "no_logprobs", "logprob_missing", "nan_logprobs")
"""Faults that it makes an error of, never a result."""


def test_each_injected_kind_is_in_the_report_with_its_count_and_what_came_of_it(
    tmp_path: Path,
) -> None:
    file, page = tmp_path / "result.json", tmp_path / "page.html"
    kinds = (*SUCCEEDED, *FAILED, "bad_request", "plain_error")
    script = ",".join(f"{kind}:#{10 * i + 1}-#{10 * i + 1 + i % 3}" for i, kind in enumerate(kinds))
    told = run(
        *("-n", "300", "--style", "future", "--start", GATEWAY, "--json", str(file)),
        *("--upstream-args", f"--gen-seconds 0.1 --max-num-seqs 20 --faults {script}"),
        *("--html", str(page)),
    )
    assert told.returncode in (0, 3), told.stderr  # 3 on a busy machine
    result = decode(file.read_bytes())
    counts = {kind.partition("=")[0]: i % 3 + 1 for i, kind in enumerate(kinds)}
    found = {fault.kind: fault for fault in result.faults}
    assert {kind: fault.injected for kind, fault in found.items()} == counts
    for kind, fault in found.items():
        assert sum(fault.seen.values()) == counts[kind], kind
        line = rf"^  {kind} +{counts[kind]} injected: "
        assert re.search(line, told.stdout, re.MULTILINE), told.stdout
        cell = f'<tr><th scope="row">{kind}</th><td class="number">{counts[kind]}</td>'
        assert cell in page.read_text(), kind
    for kind in FAILED:
        assert found[kind].seen == {"failed.server": counts[kind]}
    assert found["bad_request"].seen == {"failed.user": counts["bad_request"]}
    for kind in SUCCEEDED:
        name = kind.partition("=")[0]
        assert found[name].seen == {"succeeded": counts[name]}
    assert result.outcomes.total == 300
    assert result.outcomes.lost == 0
    assert sum(result.outcomes.failed.values()) == sum(
        counts[kind] for kind in (*FAILED, "bad_request")
    )
    assert result.doubled.upstream == 0, "what faults explain is no double"
    assert result.preflight is not None
    assert result.preflight.ok
    assert {check.who for check in result.preflight.checks} == {"client", "server", "machine"}
    assert result.server is not None
    assert result.server.rss_peak is not None
    assert result.server.in_flight_peak is not None
    assert result.server.healthz is not None
    assert len(result.series.server_rss) == len(result.series.t)


def test_a_hang_is_in_the_report_with_its_count_and_ends_at_the_read_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASGI_GATEWAY_UPSTREAM__READ_TIMEOUT_S", "2")
    file, page = tmp_path / "result.json", tmp_path / "page.html"
    told = run(
        *("-n", "60", "--style", "future", "--start", GATEWAY, "--json", str(file)),
        *("--upstream-args", "--faults hang:#11,hang:#31-#33", "--html", str(page)),
    )
    assert told.returncode in (0, 3), told.stderr  # 3 on a busy machine
    result = decode(file.read_bytes())
    (hang,) = result.faults
    assert (hang.kind, hang.injected) == ("hang", 4)
    assert hang.seen == {"succeeded": 4}, "by the read timeout the client submits them anew"
    assert (result.outcomes.succeeded, result.outcomes.lost) == (60, 0)
    assert result.doubled.upstream == 0
    assert re.search("^  hang +4 injected: ", told.stdout, re.MULTILINE), told.stdout
    assert '<tr><th scope="row">hang</th><td class="number">4</td>' in page.read_text()
    assert result.seconds >= 1.5, "the others do not wait, these do"


def test_a_result_whose_command_line_is_no_utf_8_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "result-\udcff.json"  # a byte that is no UTF-8
    with leaky({}) as url:
        told = run("-n", "5", "--url", url, "--json", str(file))
    assert told.returncode in (0, 3), told.stderr
    assert "result-\\udcff.json" in decode(file.read_bytes()).environment.command


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
