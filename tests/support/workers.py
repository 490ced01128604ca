"""`serve` as several processes, with the store of one: what a test may ask of each is its own.

Without a shared store the command refuses that, so the supervisor is started below the refusal.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from tests.support.asgi_client import Response
from tests.support.processes import Process, Served, environment, process
from tests.support.waiting import until
from tests.support.wire import SDK_HEADERS, Remote, Wire, wire

SUPERVISED = """
import sys
from msgspec.structs import replace
from asgi_gateway.configuration import load
from asgi_gateway.workers.supervisor import supervise
from asgi_gateway.settings import SettingsError
from asgi_gateway.state import StateError
def read():
    settings = load({"server.port": int(sys.argv[2])}).settings
    return replace(settings, server=replace(settings.server, workers=int(sys.argv[1])))
command = [sys.executable, "-m", "asgi_gateway", "serve", "--port", sys.argv[2]]
try:
    status = supervise(read(), command, read)
except (SettingsError, StateError) as error:
    sys.stderr.write(f"asgi-gateway: {error}\\n")
    status = 2
sys.exit(status)
"""


class Member:
    """One worker, as its command line tells of it."""

    def __init__(self, pid: int, told: dict[str, object]) -> None:
        self.pid = pid
        self.slot = int(str(told["slot"]))
        self.serial = int(str(told["serial"]))
        self.folder = Path(str(told["folder"]))

    def __repr__(self) -> str:
        return f"<Member {self.slot}, process {self.pid}>"

    @property
    def path(self) -> Path:
        return self.folder / f"{self.serial}.sock"

    @property
    def here(self) -> bool:
        return self._state() not in ("", "Z")

    @property
    def is_stopped(self) -> bool:
        return self._state() == "T"

    def _state(self) -> str:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return ""

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        self.signal(signal.SIGSTOP)
        try:
            await until(lambda: self.is_stopped)
            yield
        finally:
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def own_metrics(self) -> bytes:
        """What it answers the others."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(self.path))
            connection.sendall(b"metrics\n")
            with connection.makefile("rb") as answer:
                return answer.read()


class Workers(Served):
    """The supervisor is `process`."""

    def members(self) -> list[Member]:
        """Those that there are, by their numbers."""
        found = []
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            for pid in children.read_text().split():
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    if b"--as-worker" in words:
                        told = msgspec.json.decode(words[words.index(b"--as-worker") + 1])
                        found.append(Member(int(pid), told))
        return sorted(found, key=lambda member: member.serial)

    def accepting(self) -> list[Member]:
        """Those that answer each other, which they do from when they accept."""
        return [member for member in self.members() if member.path.exists()]


class On(Remote):
    """A client of one worker, over one connection."""

    def __init__(self, port: int, connection: Wire) -> None:
        super().__init__(port)
        self.connection = connection

    async def post(self, path: str, body: bytes | object) -> Response:
        return await self.connection.ask("POST", path, body, SDK_HEADERS)

    async def get(self, path: str) -> Response:
        return await self.connection.ask("GET", path, headers=SDK_HEADERS)

    async def poll(self, request_id: str) -> Response:
        self.send_poll(self.connection, request_id)
        return await self.connection.read()


@contextlib.asynccontextmanager
async def wire_to(served: Workers, member: Member) -> AsyncIterator[Wire]:
    """A connection that this one accepted, since no other could."""
    async with contextlib.AsyncExitStack() as stack:
        for other in served.members():
            if other.pid != member.pid:
                await stack.enter_async_context(other.frozen())
        connecting = wire(served.port)
        connection = await connecting.__aenter__()
        try:
            assert (await connection.ask("GET", "/livez")).status == 200
            await stack.aclose()
            yield connection
        finally:
            await connecting.__aexit__(None, None, None)


@contextlib.asynccontextmanager
async def on(served: Workers, member: Member) -> AsyncIterator[On]:
    """A client of this one that may sample."""
    async with wire_to(served, member) as connection:
        client = On(served.port, connection)
        await client.handshake()
        yield client


def counted(text: bytes, series: str) -> float:
    """One series of an exposition, by name and labels without the prefix."""
    found = re.search(rb"^asgi_gateway_%b (\S+)$" % re.escape(series.encode()), text, re.MULTILINE)
    assert found is not None, series
    return float(found[1])


async def another(served: Workers, known: list[Member], within_s: float = 20.0) -> Member:
    """One that accepts and is none of those."""
    serials = {member.serial for member in known}

    def fresh() -> list[Member]:
        return [member for member in served.accepting() if member.serial not in serials]

    await until(fresh, within_s)
    return fresh()[0]


async def ended(process: Process) -> int:
    """Its exit status, once it has ended."""
    return await asyncio.to_thread(process.wait)


@contextlib.contextmanager
def workers(
    upstream: str, count: int = 2, *, port: int = 0, **settings: object
) -> Iterator[Workers]:
    """A supervisor and its workers, once all accept."""
    with starting(upstream, count, port=port, **settings) as started:
        line = started.first_line()
        assert line.startswith("asgi-gateway listening on http://127.0.0.1:"), started.story()
        served = Workers("workers", int(line.rsplit(":", 1)[1]), started)
        try:
            yield served
        finally:
            left = served.members()
            started.terminate()
            with contextlib.suppress(AssertionError):
                started.wait()
            for member in left:
                member.kill()


@contextlib.contextmanager
def starting(
    upstream: str, count: int = 2, *, port: int = 0, **settings: object
) -> Iterator[Process]:
    """One that may yet refuse to serve."""
    environ = environment(upstream__urls=upstream, **settings)
    with process([sys.executable, "-c", SUPERVISED, str(count), str(port)], environ) as started:
        yield started
