"""The stand-in as a program: one process, or several on one port."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec
import uvloop

from loadgen.peers import make_board
from loadgen.settings import Settings
from loadgen.upstream import Upstream

START_S: Final = 30.0
STOP_S: Final = 10.0
READY: Final = "ready"


class ListenError(Exception):
    """The address cannot be had, or a process did not start."""


class Whole(msgspec.Struct, tag="whole"):
    """A stand-in as a process that its starter describes on standard input, not by flags."""

    settings: Settings
    processes: int = 1


class Member(msgspec.Struct, tag="member"):
    """What one of several processes is told on its standard input, which it then watches."""

    settings: Settings
    directory: str
    index: int
    count: int


def urls(settings: Settings, port: int) -> str:
    """Where clients reach it, one URL per address."""
    shown = (f"[{host}]" if ":" in host else host for host in settings.hosts)
    return " ".join(f"http://{host}:{port}" for host in shown)


def serve(settings: Settings, processes: int = 1) -> None:
    """Serve until SIGTERM or SIGINT. The first line on stdout says that it accepts.

    Raises ListenError, and ValueError where a spec among the settings is wrong.
    """
    if processes > 1:
        _serve_several(settings, processes)
    else:
        uvloop.run(_serve_one(settings))


def _prepare() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Collecting the imports and the tape again and again would show up in measurements.
    gc.set_threshold(50_000, 20, 100)


async def _serve_one(settings: Settings) -> None:
    _prepare()
    stopping = _stopping()
    upstream = Upstream(settings)
    upstream.warm()
    try:
        await upstream.start()
    except OSError as error:
        raise _refused(settings, error) from error
    print(f"loadgen upstream listening on {urls(settings, upstream.port)}", flush=True)
    await stopping.wait()
    await upstream.stop()


def _stopping() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def _refused(settings: Settings, error: OSError) -> ListenError:
    reason = error.strerror or str(error)
    where = ", ".join(f"{host}:{settings.port}" for host in settings.hosts)
    return ListenError(f"cannot listen on {where}: {reason}")


# --- several processes --------------------------------------------------------------------------


def _serve_several(settings: Settings, count: int) -> None:
    Upstream(settings)  # a wrong spec is said once, and here
    stop = _Stop()
    with contextlib.ExitStack() as stack:
        try:
            port = stack.enter_context(_reserved(settings))
        except OSError as error:
            raise _refused(settings, error) from error
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="loadgen-"))
        make_board(Path(directory), count)
        shared = settings._replace(port=port)
        members: list[subprocess.Popen[str]] = []
        stack.callback(_end, members)
        members += (_started(Member(shared, directory, index, count)) for index in range(count))
        for member in members:
            _await_ready(member)
        print(f"loadgen upstream listening on {urls(settings, port)}", flush=True)
        stop.wait(members)


class _Stop:
    """SIGTERM and SIGINT as something to wait for beside the members."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def wait(self, members: list[subprocess.Popen[str]]) -> None:
        """Until a signal comes, or a member ends by itself: ListenError then."""
        outputs = [member.stdout.fileno() for member in members if member.stdout is not None]
        readable, _, _ = select.select([self._reader.fileno(), *outputs], [], [])
        if self._reader.fileno() not in readable:
            raise ListenError("one of the processes has ended by itself")


@contextlib.contextmanager
def _reserved(settings: Settings) -> Iterator[int]:
    """The port, kept from others who do not share it while the members bind to it."""
    for host in settings.hosts:
        family, _, _, _, address = socket.getaddrinfo(
            host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # SO_REUSEPORT lets two stand-ins of one user share a port unnoticed; this one does not.
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    family, _, _, _, address = socket.getaddrinfo(
        settings.hosts[0], settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
        yield int(held.getsockname()[1])


def _started(member: Member) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.serving"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the parent, which ends them in order
    )
    _stdin(process).write(msgspec.json.encode(member).decode() + "\n")
    _stdin(process).flush()
    return process


def _stdin(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdin is not None
    return process.stdin


def _await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline().strip() if readable else "no sign of it in time"
    if line != READY:
        raise ListenError(line or "one of the processes did not start")


def _end(members: list[subprocess.Popen[str]]) -> None:
    """Closing a member's standard input ends it, as it does where this process dies."""
    for member in members:
        with contextlib.suppress(OSError):
            _stdin(member).close()
    for member in members:
        try:
            member.wait(STOP_S)
        except subprocess.TimeoutExpired:
            member.kill()
            member.wait()
        if member.stdout is not None:
            member.stdout.close()


async def _serve_member(member: Member) -> None:
    _prepare()
    stopping = _stopping()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), stopping.set)
    upstream = Upstream(member.settings)
    upstream.warm()
    await upstream.join(Path(member.directory), member.index, member.count)
    try:
        await upstream.start()
    except OSError as error:
        print(_refused(member.settings, error), flush=True)
        return
    print(READY, flush=True)
    await stopping.wait()
    loop.remove_reader(sys.stdin.fileno())
    await upstream.stop()


def _main() -> None:
    told = msgspec.json.decode(sys.stdin.readline(), type=Whole | Member)
    if isinstance(told, Member):
        uvloop.run(_serve_member(told))
    else:
        serve(told.settings, told.processes)


if __name__ == "__main__":
    _main()
