"""Servers started for a run: each says where it listens, and is ended by its pid."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from loadgen.procfs import tree

START_WITHIN_S: Final = 30.0
STOP_WITHIN_S: Final = 20.0
PR_SET_PDEATHSIG: Final = 1
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
STDERR_SHOWN: Final = 4000


class StartError(Exception):
    """A server that did not say where it listens; with what it wrote instead."""


class Child:
    """One server process."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        core: int | None = None,
        inherited: Mapping[str, str] = os.environ,
        cwd: Path | None = None,
    ) -> None:
        """environ: added to the inherited one. core: the one it is pinned to, None for none."""
        self.command = list(command)
        self.url = ""
        self._said = ""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop
        try:
            self._process = subprocess.Popen(
                self.command,
                cwd=cwd,
                env={**inherited, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,  # Ctrl-C is for us, who end it in order
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            raise StartError(f"{command[0]}: {error.strerror}") from error
        self.pid = self._process.pid
        if core is not None:
            os.sched_setaffinity(self.pid, {core})

    def __repr__(self) -> str:
        return f"<Child {self.pid} {' '.join(self.command)}>"

    def ready(self) -> None:
        """Wait for the line that ends with a URL. Raises StartError where none comes in time."""
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + START_WITHIN_S
        while (left_s := deadline - time.monotonic()) > 0:
            if not select.select([stdout], [], [], left_s)[0]:
                break
            line = stdout.readline().decode("utf-8", "replace").strip()
            last = line.rpartition(" ")[2]
            if last.startswith("http://"):
                self.url = last
                return
            if not line and self._process.poll() is not None:
                break
        raise StartError(f"{' '.join(self.command)}: did not start: {self.stderr()}")

    def cpu_s(self) -> float:
        """Seconds on a core so far, user and system."""
        return cpu_s_of(self.pid)

    def alive(self) -> bool:
        return self._process.poll() is None

    def stderr(self, most: int = STDERR_SHOWN) -> str:
        """The end of what it wrote there, in bytes at most; STDERR_SHOWN once it is stopped."""
        if self._stderr.closed:
            return self._said
        # By pread: a child's position in the file is its parent's too.
        size = os.fstat(self._stderr.fileno()).st_size
        data = os.pread(self._stderr.fileno(), most, max(0, size - most))
        return data.decode("utf-8", "replace")

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL; the exit status, None where it had to be killed."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._said = self.stderr()
            self._stderr.close()


class Recorder:
    """A process that writes lines to a file of ours until its standard input is closed."""

    def __init__(self, command: Sequence[str], *, cwd: Path | None = None) -> None:
        self._lines: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=self._lines,
            start_new_session=True,  # Ctrl-C is for us, who end it in order
        )
        self.pid = self._process.pid
        self._last: list[str] = []

    def __repr__(self) -> str:
        return f"<Recorder {self.pid}>"

    def lines(self) -> list[str]:
        """The whole lines so far; after `stop`, all."""
        if self._lines.closed:
            return self._last
        size = os.fstat(self._lines.fileno()).st_size
        text = os.pread(self._lines.fileno(), size, 0).decode("utf-8", "replace")
        return text.rpartition("\n")[0].splitlines()

    def stop(self) -> None:
        """Have it end; SIGKILL where it does not."""
        if self._lines.closed:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._last = self.lines()
        self._lines.close()


def die_with_parent() -> None:
    """In a new child: end when the process that started it ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def serving(
    command: Sequence[str], *, environ: Mapping[str, str] | None = None, core: int | None = None
) -> Iterator[Child]:
    """A server while the block runs."""
    child = Child(command, environ=environ, core=core)
    try:
        child.ready()
        yield child
    finally:
        child.stop()


def cpu_s_of(pid: int) -> float:
    """With the processes that it started and that are there. Raises OSError where it is gone."""
    own = _cpu_s(pid)
    others = [each for each in tree(pid) if each != pid]
    for each in others:
        with contextlib.suppress(OSError):  # ended meanwhile
            own += _cpu_s(each)
    return own


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def machine_cpu_s() -> tuple[float, float]:
    """Seconds of all cores together, busy and in all, since boot.

    Niced processes do not count as busy: they make room for ours.
    """
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = [int(field) for field in fields]
    idle = ticks[1] + ticks[3] + ticks[4]
    return (sum(ticks) - idle) / CLOCK_TICKS, sum(ticks) / CLOCK_TICKS
