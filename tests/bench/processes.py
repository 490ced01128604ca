"""Servers and drivers as processes, each on its core, and what they cost.

The server that is measured has one core, all else another. Whatever happens, leaving a context ends
its process: with SIGKILL, since a gateway with 131,072 samples held would drain for a while and
nothing of it is needed any more. Should the bench itself be killed, the kernel ends them.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final, Literal

import msgspec

from tests.bench.driver import Done, Spec
from tests.support.flood.servers import Server
from tests.support.processes import die_with_parent

STOPS_AT_ONCE = {"drain.predrain_s": "0", "drain.grace_s": "0"}
ROOT: Final = Path(__file__).parents[2]
PREFIX: Final = "ASGI_GATEWAY_"
# A run starts nothing after so long, whatever its count; what it started may take longer.
START_FOR_S: Final = 15.0
COMMAND_WITHIN_S: Final = 180.0
ASK_EVERY_S: Final = 0.5


KEEPALIVE_S: Final = "600"


# Around the empty application of the floor: the server as it comes, or `asgi-gateway serve`.
Floor = Literal["uvicorn", "serve"]


class BenchError(RuntimeError):
    """A figure that cannot be had, and why."""


def cpu_s(pid: int) -> float:
    """Seconds that a process and its threads have spent on a core, to the nanosecond (Linux)."""
    # MAKE_PROCESS_CPUCLOCK of the kernel, CPUCLOCK_SCHED; what clock_getcpuclockid(3) returns.
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9


class Driver:
    """The process of `driver`. Every command has an end, whatever becomes of the process."""

    def __init__(self, spec: Spec, core: int | None) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.driver", msgspec.json.encode(spec).decode()],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            preexec_fn=die_with_parent,
        )
        if core is not None:
            os.sched_setaffinity(self._process.pid, {core})

    def open(self) -> None:
        self._command("open")

    def run(
        self,
        count: int,
        meanwhile: Callable[[], None] = lambda: None,
        start_for_s: float = START_FOR_S,
    ) -> Done:
        """Have `count` units done, or those that can be started in so long.

        meanwhile: called twice a second. Raises BenchError.
        """
        return self._command(f"run {count} {start_for_s}", meanwhile)

    def park(self) -> None:
        self._command("park")

    def _command(
        self,
        command: str,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Done:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(command.encode() + b"\n")
            stdin.flush()
        except OSError:
            raise BenchError(f"the driver ended: {self._said()}") from None
        deadline = time.monotonic() + COMMAND_WITHIN_S
        while not select.select([stdout], [], [], ASK_EVERY_S)[0]:
            if time.monotonic() > deadline:
                raise BenchError(f"{command!r} was not done within {COMMAND_WITHIN_S:g} s")
            meanwhile()
        line = stdout.readline()
        if not line:
            raise BenchError(f"the driver ended in {command!r}: {self._said()}")
        done = msgspec.json.decode(line, type=Done)
        if done.fault is not None:
            raise BenchError(f"{command!r}: {done.fault}")
        return done

    def _said(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), size, 0).decode(errors="replace").strip()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Bench:
    """Where processes run and which settings every gateway gets.

    settings: of the gateway by dotted path; they must be known to it, or no gateway starts.
    """

    def __init__(
        self,
        *,
        quick: bool = False,
        runs: int = 3,
        settings: Mapping[str, str] | None = None,
        pinned: bool = True,
        floor: Floor = "uvicorn",
    ) -> None:
        self.quick = quick
        self.runs = runs
        self._floor: Floor = floor
        self.settings = dict(settings or {})
        cores = sorted(os.sched_getaffinity(0))
        self.server_core = cores[0] if pinned and len(cores) > 1 else None
        self.client_core = cores[1] if pinned and len(cores) > 1 else None

    @contextlib.contextmanager
    def gateway(
        self, upstream: Server, settings: Mapping[str, str] | None = None
    ) -> Iterator[Server]:
        """`asgi-gateway serve`, without a journal unless `settings` name a folder."""
        command = ["asgi_gateway", "serve", "--port", "0", "--upstream", url(upstream)]
        every = {**STOPS_AT_ONCE, "state.dir": "", **self.settings, **(settings or {})}
        with self._serving(command, self.server_core, environment(every)) as server:
            yield server

    @contextlib.contextmanager
    def bare(
        self,
        upstream: Server,
        answers: Mapping[str, int],
        kind: Floor | None = None,
    ) -> Iterator[Server]:
        """A server around an empty application, that of the floor unless it is named; answers:
        path -> bytes of its answer."""
        sizes = msgspec.json.encode(answers).decode()
        command = ["tests.bench.bare", kind or self._floor, url(upstream), sizes]
        with self._serving(
            command, self.server_core, environment({**STOPS_AT_ONCE, "state.dir": ""})
        ) as server:
            yield server

    @contextlib.contextmanager
    def stand_in(self, *arguments: str) -> Iterator[Server]:
        """`loadgen upstream`. The floor's client is idle for some seconds between its runs, and a
        connection must not be closed just as the next begins."""
        command = ["loadgen", "upstream", "--port", "0", "--keepalive-s", KEEPALIVE_S, *arguments]
        with self._serving(command, self.client_core, {}) as server:
            yield server

    @contextlib.contextmanager
    def driver(self, spec: Spec, *, measured: bool = False) -> Iterator[Driver]:
        """Its connections stand. measured: on the core of the servers, because it is the figure."""
        driver = Driver(spec, self.server_core if measured else self.client_core)
        try:
            driver.open()
            yield driver
        finally:
            driver.close()

    @contextlib.contextmanager
    def _serving(
        self, command: list[str], core: int | None, environ: Mapping[str, str]
    ) -> Iterator[Server]:
        server = Server([sys.executable, "-m", *command], environ=environ, core=core)
        try:
            server.ready()
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGKILL)
            server.stop()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings by dotted path as the variables that mean them."""
    return {PREFIX + path.replace(".", "__").upper(): value for path, value in settings.items()}
