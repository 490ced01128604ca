"""Profiles of processes whose time is known to go into one function."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadgen import profiling
from loadgen.profiling import (
    ProfileError,
    Recording,
    profile_of,
    profiled_command,
    started,
    stopped,
    top_of_stacks,
)

BUSY = """
import signal, sys, time

def hot(until):
    while time.monotonic() < until:
        sum(range(2000))

def main():
    print("going", flush=True)
    while True:
        hot(time.monotonic() + 0.05)

main()
"""


def busy(*before: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, *before, "-c", BUSY], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_py_spy_finds_the_hot_function_or_says_why_not() -> None:
    process = busy()
    try:
        notes: list[str] = []
        recordings = started({"server": process.pid}, notes)
        time.sleep(1.0)
        profiles = stopped(recordings, notes)
        assert process.poll() is None, "the process goes on"
    finally:
        end(process)
    if not profiles:
        assert "not allowed here" in notes[0] or "not installed" in notes[0]
        pytest.skip(notes[0])
    (profile,) = profiles
    assert (profile.who, profile.tool, notes) == ("server", "py-spy", [])
    assert profile.rows[0].function == "hot"
    assert profile.rows[0].self_share > 0.8
    main = next(row for row in profile.rows if row.function == "main")
    assert main.total_share > 0.8
    assert main.self_share < 0.2


def test_nobodys_pid_is_a_reason_and_no_error() -> None:
    notes: list[str] = []
    assert started({"server": 99_999_999}, notes) == []
    (note,) = notes
    assert note.startswith("no profile: py-spy")


def test_a_missing_py_spy_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProfileError, match="not installed"):
        Recording("server", os.getpid())


def test_what_may_not_be_traced_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A py-spy that is refused, as without ptrace."""
    refused = tmp_path / "py-spy"
    refused.write_text("#!/bin/sh\necho 'Permission Denied: Try running again' >&2\nexit 1\n")
    refused.chmod(0o755)
    monkeypatch.setattr(profiling, "_py_spy", lambda: str(refused))
    with pytest.raises(ProfileError, match="ptrace_scope"):
        Recording("server", os.getpid())


def test_stacks_add_up_and_recursion_counts_once() -> None:
    rows = top_of_stacks("a (m.py);b (m.py);a (m.py) 3\na (m.py);c (n.py) 1\nnonsense\n")
    shares = {row.function: (row.where, row.self_share, row.total_share) for row in rows}
    assert shares == {
        "a": ("m.py", 0.75, 1.0),
        "b": ("m.py", 0.0, 0.75),
        "c": ("n.py", 0.25, 0.25),
    }
    assert [row.function for row in rows] == ["a", "c", "b"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_cprofile_is_written_however_the_program_ends(
    tmp_path: Path, number: signal.Signals
) -> None:
    script, file = tmp_path / "busy.py", tmp_path / "profile"
    script.write_text(BUSY)
    command = profiled_command([sys.executable, str(script)], file)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    time.sleep(0.4)
    process.send_signal(number)
    process.wait(timeout=20)
    process.stdout.close()
    profile = profile_of(file, "server", 0.4)
    assert profile.tool == "cProfile"
    shares = {row.function: row for row in profile.rows}
    assert shares["hot"].total_share > 0.7


def test_cprofile_of_a_server_that_loadgen_starts(tmp_path: Path) -> None:
    file = tmp_path / "profile"
    command = profiled_command([sys.executable, "-m", "loadgen", "upstream", "--port", "0"], file)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("loadgen upstream listening on ")
    process.terminate()
    assert process.wait(timeout=20) == 0
    process.stdout.close()
    assert profile_of(file, "server", 1.0).rows


def test_what_cannot_be_profiled_is_named(tmp_path: Path) -> None:
    for command in (["sh"], ["no-such-program"], [sys.executable, "-c", "pass"]):
        with pytest.raises(ProfileError, match="cProfile"):
            profiled_command(command, tmp_path / "x")
    script = Path(sys.executable).with_name("loadgen-script")
    assert not script.exists()
    console = tmp_path / "console"
    console.write_text(f"#!{sys.executable}\nprint('hello')\n")
    console.chmod(0o755)
    made = profiled_command([str(console), "--flag"], tmp_path / "x")
    assert made[0] == sys.executable
    done = subprocess.run(made, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    with pytest.raises(ProfileError, match="wrote nothing"):
        profile_of(tmp_path / "absent", "server", 1.0)
