"""The processes of a flood, each started by hand and ended by its pid, and their figures."""

import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from tests.support.flood.probe import Seen, descriptors_of, parse, rss_bytes_of
from tests.support.processes import die_with_parent

ROOT: Final = Path(__file__).parents[3]
START_S: Final = 20.0
STOP_S: Final = 20.0
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
PROBE: Final = "tests.support.flood.probe"


class Server:
    """One server process that says on its first line where it listens."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        core: int | None = None,
    ) -> None:
        """core: the one it is pinned to, None for none. `environ` is added to the inherited one."""
        self.command = " ".join(command[1:])
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ASGI_GATEWAY_")}
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**inherited, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            preexec_fn=die_with_parent,
        )
        self.pid = self._process.pid
        if core is not None:
            os.sched_setaffinity(self.pid, {core})
        self.port = 0

    def __repr__(self) -> str:
        return f"<Server {self.pid} {self.command}>"

    def ready(self) -> None:
        """Wait for the first line; raises with the process's stderr where none comes."""
        stdout = self._process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], START_S)
        line = stdout.readline().decode() if readable else ""
        if not line:
            raise RuntimeError(f"{self.command} did not start: {self.stderr()}")
        self.port = int(line.rpartition(":")[2])

    def cpu_s(self) -> float:
        """Seconds on a core so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def rss_bytes(self) -> int:
        return rss_bytes_of(self.pid)

    def descriptors(self) -> int:
        return descriptors_of(self.pid)

    def stderr(self) -> str:
        return _written(self._stderr)

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL; the exit status, None where it had to be killed."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()

    def close(self) -> None:
        self.stop()
        self._stderr.close()


@contextlib.contextmanager
def serving(
    command: Sequence[str], *, environ: Mapping[str, str] | None = None, core: int | None = None
) -> Iterator[Server]:
    server = Server(command, environ=environ, core=core)
    try:
        server.ready()
        yield server
    finally:
        server.close()


class Probe:
    """The process of `probe`, and what it has seen."""

    def __init__(self, server: Server) -> None:
        self._lines: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROBE, str(server.port), str(server.pid)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=self._lines,
        )

    def between(self, begin: float, end: float) -> list[Seen]:
        """The probes that were due between two times of the monotonic clock."""
        whole = _written(self._lines).rpartition("\n")[0].splitlines()
        return [seen for seen in map(parse, whole) if begin <= seen.at < end]

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._lines.close()


@contextlib.contextmanager
def probing(server: Server) -> Iterator[Probe]:
    probe = Probe(server)
    try:
        yield probe
    finally:
        probe.stop()


def _written(file: IO[bytes]) -> str:
    """What a child has written so far; its position in the file is the parent's too."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode("utf-8", "replace")
