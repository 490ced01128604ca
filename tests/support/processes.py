"""Real processes for tests: gateways under real servers, the stand-in vLLM, the SDK's program.

Every process is a context manager that ends what it started, its own children included, and puts
what was printed into the failure. Waiting is for a line or an answering port, never for a guess.
"""

import contextlib
import ctypes
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
START_S = 20.0
STOP_S = 15.0
_PR_SET_PDEATHSIG = 1

# For gateways, unless a test is about their drain.
STOP_AT_ONCE = {"ASGI_GATEWAY_DRAIN__PREDRAIN_S": "0", "ASGI_GATEWAY_DRAIN__GRACE_S": "0"}

SERVERS = ("uvicorn", "hypercorn", "granian")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def deaf_port(port: int) -> Iterator[None]:
    """Connects to `port` neither stand nor fail: its listener's accept queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield


class Process:
    """One process in a group of its own, its output kept in files."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str] | None = None,
        *,
        stdin: int | None = subprocess.DEVNULL,
    ) -> None:
        self.command = list(command)
        self._output = tempfile.TemporaryDirectory(prefix="gateway-test-")
        self._paths = {name: Path(self._output.name, name) for name in ("stdout", "stderr")}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ASGI_GATEWAY_")}
        with self._paths["stdout"].open("wb") as out, self._paths["stderr"].open("wb") as err:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env={**inherited, "PYTHONUNBUFFERED": "1", **STOP_AT_ONCE, **(environ or {})},
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def __repr__(self) -> str:
        return f"<Process {self.pid} {' '.join(self.command[:6])}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> str:
        return self._paths["stdout"].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._paths["stderr"].read_text(errors="replace")

    @property
    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def story(self) -> str:
        """What a failed test should show of it."""
        return f"{self}, exit {self.status}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    def wait_for(self, found: Callable[[], bool], what: str, within_s: float = START_S) -> None:
        """Until `found()`; fails with the process's output where it ends or nothing comes."""
        deadline = time.monotonic() + within_s
        while not found():
            if self.status is not None and not found():
                raise AssertionError(f"it ended before {what}: {self.story()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {within_s} s: {self.story()}")
            time.sleep(0.02)

    def first_line(self) -> str:
        """The first line on stdout, once it is whole."""
        self.wait_for(lambda: "\n" in self.stdout, "first line")
        return self.stdout.split("\n", 1)[0]

    def wait(self, within_s: float = STOP_S) -> int:
        """The exit status."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s} s: {self.story()}") from None

    def signal(self, number: signal.Signals) -> None:
        """To the process alone, as a supervisor does; it ends its workers itself."""
        self._process.send_signal(number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """No handler runs; returns when it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop it and its workers for a while, so that what happens meanwhile meets it at once.

        On a busy machine a signalled process is stopped some time later, and until then it sees
        the first of what happens without the rest.
        """
        os.killpg(self.pid, signal.SIGSTOP)
        try:
            self.wait_for(lambda: set(_states_of_group(self.pid)) <= {"T", "Z"}, "stop")
            yield
        finally:
            os.killpg(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it and everything in its group, whatever state it is in."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        # The group is ours alone (start_new_session); usually nobody is left in it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._output.cleanup()


def _states_of_group(group: int) -> Iterator[str]:
    """The state letter of each process in a group (proc_pid_stat(5))."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, process_group, *_ = path.read_text().rpartition(")")[2].split()
            if int(process_group) == group:
                yield state


def die_with_parent() -> None:
    """Where the test process is killed with no chance to clean up (Linux only)."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


_libc = ctypes.CDLL(None)


@contextlib.contextmanager
def process(command: Sequence[str], environ: Mapping[str, str] | None = None) -> Iterator[Process]:
    started = Process(command, environ)
    try:
        yield started
    finally:
        started.close()


def _python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


# --- the stand-in vLLM ---------------------------------------------------------------------------


@contextlib.contextmanager
def stand_in(*arguments: str, port: int = 0) -> Iterator[str]:
    """`loadgen upstream`; its URL."""
    with process(_python("loadgen", "upstream", "--port", str(port), *arguments)) as started:
        line = started.first_line()
        url = line.rsplit(" ", 1)[-1]
        assert url.startswith("http://"), started.story()
        yield url


# --- the gateway ---------------------------------------------------------------------------------


class Served:
    """A gateway that answers on a port."""

    # Processes behind it.
    gateways = 1

    def __init__(self, server: str, port: int, process: Process) -> None:
        self.server = server
        self.port = port
        self.process = process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serve(upstream: str, *arguments: str, **settings: object) -> Iterator[Served]:
    """`asgi-gateway serve` on a free port."""
    command = _python("asgi_gateway", "serve", "--port", "0", "--upstream", upstream, *arguments)
    with process(command, environment(**settings)) as started:
        line = started.first_line()
        assert line.startswith("asgi-gateway listening on http://127.0.0.1:"), started.story()
        yield Served("serve", int(line.rsplit(":", 1)[1]), started)


@contextlib.contextmanager
def under(server: str, upstream: str, *extra: str, **settings: object) -> Iterator[Served]:
    """`create_app` under the command line of uvicorn, hypercorn or granian, one worker."""
    port = free_port()
    command = server_command(server, port, *extra)
    with process(command, environment(upstream__urls=upstream, **settings)) as started:
        started.wait_for(lambda: answers(port), "answer on its port")
        yield Served(server, port, started)


@contextlib.contextmanager
def all_under(
    commands: Sequence[tuple[str, ...]], upstream: str, **settings: object
) -> Iterator[list[Served]]:
    """The same for several servers that start at once; each is named with its flags behind."""
    with contextlib.ExitStack() as stack:
        served = []
        for server, *extra in commands:
            port = free_port()
            environ = environment(upstream__urls=upstream, **settings)
            started = stack.enter_context(process(server_command(server, port, *extra), environ))
            served.append(Served(server, port, started))
        for each in served:
            each.process.wait_for(functools.partial(answers, each.port), "answer on its port")
        yield served


def server_command(
    server: str, port: int, *extra: str, application: str = "asgi_gateway:create_app"
) -> list[str]:
    """What a user would type; `application` is a factory, as MODULE:FUNCTION."""
    where = ["--host", "127.0.0.1", "--port", str(port)]
    match server:
        case "uvicorn":
            return _python("uvicorn", "--factory", application, *where, *extra)
        case "hypercorn":
            bind = f"127.0.0.1:{port}"
            return _python("hypercorn", f"{application}()", "--bind", bind, *extra)
        case "granian":
            target = ["--interface", "asgi", "--factory", application]
            return _python("granian", *target, *where, *extra)
    raise ValueError(f"no server called {server}")


def environment(**settings: object) -> dict[str, str]:
    """Settings by dotted path, with __ for the dots, as ASGI_GATEWAY_* variables."""
    return {f"ASGI_GATEWAY_{name.upper()}": str(value) for name, value in settings.items()}


def answers(port: int) -> bool:
    """Whether a health check is answered; a listening socket alone proves no application."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as wire:
        wire.sendall(b"GET /api/v1/healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return wire.recv(12) == b"HTTP/1.1 200"
    return False
