"""The processes of a flood, each started by hand and ended by its pid, and their figures."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from loadgen.processes import Child
from tests.support.flood.probe import Seen, descriptors_of, parse, rss_bytes_of

ROOT: Final = Path(__file__).parents[3]
STOP_S: Final = 20.0
PROBE: Final = "tests.support.flood.probe"


class Server(Child):
    """One server process, with nothing of the gateway's settings but what it is given."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        core: int | None = None,
    ) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ASGI_GATEWAY_")}
        super().__init__(command, environ=environ, core=core, inherited=inherited, cwd=ROOT)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def rss_bytes(self) -> int:
        return rss_bytes_of(self.pid)

    def descriptors(self) -> int:
        return descriptors_of(self.pid)


@contextlib.contextmanager
def serving(
    command: Sequence[str], *, environ: Mapping[str, str] | None = None, core: int | None = None
) -> Iterator[Server]:
    server = Server(command, environ=environ, core=core)
    try:
        server.ready()
        yield server
    finally:
        server.stop()


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
