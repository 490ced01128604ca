"""Where the time goes: py-spy on a running process, cProfile on one that we start.

py-spy needs ptrace: the same user and a kernel that lets it, or root. Where it cannot be had, a
reason is given instead of a profile. cProfile slows what it watches, by half or more, so a run with
it says where the time goes, not how much there is.
"""

from __future__ import annotations

import os
import pstats
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from loadgen.results import Profile, ProfileRow

RATE: Final = 100
TOP: Final = 25
ATTACH_S: Final = 20.0
STOP_S: Final = 30.0
_FRAME: Final = re.compile(r"(.*) \((.*)\)")


class ProfileError(Exception):
    """No profile, and why."""


class Recording:
    """py-spy on one process, from `__init__` to `stop`. Raises ProfileError where it cannot be."""

    def __init__(self, who: str, pid: int) -> None:
        self.who = who
        self._folder = tempfile.TemporaryDirectory(prefix="loadgen-")
        self._file = Path(self._folder.name, "raw")
        try:
            self._process = self._started(pid)
        except ProfileError:
            self._folder.cleanup()
            raise
        self._began = time.monotonic()

    def __repr__(self) -> str:
        return f"<Recording of the {self.who}>"

    def _started(self, pid: int) -> subprocess.Popen[bytes]:
        command = [_py_spy(), "record", "--format", "raw", "--function", "--rate", str(RATE)]
        command += ["--pid", str(pid), "--output", str(self._file)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us, who end it in order
        )
        assert process.stdout is not None
        # It writes a line once it has attached, or why it could not.
        readable, _, _ = select.select([process.stdout], [], [], ATTACH_S)
        said = os.read(process.stdout.fileno(), 4096).decode("utf-8", "replace") if readable else ""
        if "Sampling process" in said:
            return process
        process.kill()
        said += process.communicate()[0].decode("utf-8", "replace")
        raise ProfileError(f"py-spy on the {self.who}: {_reason(said)}")

    def stop(self) -> Profile:
        """Raises ProfileError where nothing was recorded."""
        seconds = time.monotonic() - self._began
        self._process.send_signal(signal.SIGINT)
        try:
            said, _ = self._process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, _ = self._process.communicate()
        with self._folder:
            text = self._file.read_text() if self._file.exists() else ""
        if not text:
            reason = _reason(said.decode("utf-8", "replace"))
            raise ProfileError(f"py-spy on the {self.who} recorded nothing: {reason}")
        rows = top_of_stacks(text)
        return Profile(who=self.who, tool="py-spy", seconds=round(seconds, 3), rows=rows)


def allowed(pid: int) -> bool:
    """Whether py-spy is there and may look into this process, a Python program."""
    try:
        command = [_py_spy(), "dump", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, timeout=ATTACH_S, check=False)
    except (ProfileError, OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _py_spy() -> str:
    """Beside the interpreter, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise ProfileError("py-spy is not installed: pip install py-spy")
    return found


def _reason(said: str) -> str:
    if "Permission" in said or "EPERM" in said:
        return "not allowed here; it needs ptrace: run as root, or set kernel.yama.ptrace_scope=0"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it did not say why"


def top_of_stacks(text: str, count: int = TOP) -> list[ProfileRow]:
    """Functions by own time, of folded stacks: `outer (file);inner (file) samples` a line."""
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, number = line.rpartition(" ")
        if not number.isdigit() or not stack:
            continue
        frames = stack.split(";")
        own[frames[-1]] += int(number)
        for frame in set(frames):
            within[frame] += int(number)
    whole = own.total()
    rows = []
    for frame, _ in sorted(within.items(), key=lambda item: (-own[item[0]], -item[1]))[:count]:
        match = _FRAME.fullmatch(frame)
        function, where = match.groups() if match else (frame, "")
        rows.append(_row(function, where, own[frame] / whole, within[frame] / whole))
    return rows


def _row(function: str, where: str, own: float, within: float) -> ProfileRow:
    return ProfileRow(
        function=function,
        where=where,
        self_share=round(own, 4),
        total_share=round(min(within, 1.0), 4),
    )


# --- several at once ----------------------------------------------------------------------------


def started(pids: Mapping[str, int], notes: list[str]) -> list[Recording]:
    """Record these processes, by name (server, client); why not is a note."""
    found = []
    for who, pid in pids.items():
        try:
            found.append(Recording(who, pid))
        except ProfileError as error:
            notes.append(f"no profile: {error}")
    return found


def stopped(recordings: Sequence[Recording], notes: list[str]) -> list[Profile]:
    """End them and read what they recorded; why not is a note."""
    found = []
    for each in recordings:
        try:
            found.append(each.stop())
        except ProfileError as error:
            notes.append(f"no profile: {error}")
    return found


# --- cProfile -----------------------------------------------------------------------------------


def profiled_command(command: Sequence[str], file: Path) -> list[str]:
    """The same Python program under cProfile, which writes `file` when it ends.

    Raises ProfileError for what is no Python program: only `python -m module`, `python file` and
    console scripts are, after `env NAME=VALUE` or not.
    """
    program, *rest = command
    if Path(program).name == "env":
        names = list(takewhile(lambda word: "=" in word, rest))
        return [program, *names, *profiled_command(rest[len(names) :], file)]
    name = Path(program).name
    wrapper = ["-m", "loadgen.profiled", str(file)]
    if re.fullmatch(r"python[0-9.]*", name):
        if not rest or (rest[0].startswith("-") and rest[0] != "-m"):
            raise ProfileError(f"cProfile: {' '.join(command)}: flags of python are not taken over")
        return [program, *wrapper, *rest]
    found = shutil.which(program)
    if found is None:
        raise ProfileError(f"cProfile: no program {program!r}")
    with open(found, "rb") as script:  # noqa: PTH123 - two bytes and a line
        first = script.readline(200)
    if not (first.startswith(b"#!") and b"python" in first):
        raise ProfileError(f"cProfile: {program} is no Python script")
    return [first[2:].decode().split()[-1], *wrapper, found, *rest]


def profile_of(file: Path, who: str, seconds: float) -> Profile:
    """What `loadgen.profiled` wrote. Raises ProfileError where it wrote nothing."""
    try:
        stats = pstats.Stats(str(file))
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise ProfileError(f"cProfile of the {who} wrote nothing: {error}") from error
    return Profile(who=who, tool="cProfile", seconds=seconds, rows=top_of_stats(stats))


def top_of_stats(stats: pstats.Stats, count: int = TOP) -> list[ProfileRow]:
    """Functions by own time."""
    found: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]
    whole = sum(entry[2] for entry in found.values()) or 1.0
    rows = []
    for (file, number, function), entry in sorted(found.items(), key=lambda item: -item[1][2]):
        where = f"{file}:{number}" if number else ""
        rows.append(_row(function, where, entry[2] / whole, entry[3] / whole))
        if len(rows) == count:
            break
    return rows
