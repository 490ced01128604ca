"""The processes of a flood, each started by hand and ended by its pid, and their figures."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from loadgen.processes import Child, Recorder
from tests.support.flood.probe import Seen, descriptors_of, parse, rss_bytes_of

ROOT: Final = Path(__file__).parents[3]
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


class Probe(Recorder):
    """The process of `probe`, and what it has seen."""

    def __init__(self, server: Server) -> None:
        super().__init__([sys.executable, "-m", PROBE, str(server.port), str(server.pid)], cwd=ROOT)

    def between(self, begin: float, end: float) -> list[Seen]:
        """The probes that were due between two times of the monotonic clock."""
        return [seen for seen in map(parse, self.lines()) if begin <= seen.at < end]


@contextlib.contextmanager
def probing(server: Server) -> Iterator[Probe]:
    probe = Probe(server)
    try:
        yield probe
    finally:
        probe.stop()
