import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from asgi_gateway.training.proxy import Proxy
from tests.support.processes import Process, free_port, process
from tests.training.target import Target


class Front:
    """A server that serves the proxy, and the port where its trainer listens or not."""

    def __init__(self, port: int, trainer_port: int, process: Process) -> None:
        self.port = port
        self.trainer_port = trainer_port
        self.process = process

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.process.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS:"))
        return int(line.split()[1]) << 10


@contextlib.contextmanager
def front(server: str = "uvicorn") -> Iterator[Front]:
    port, trainer_port = free_port(), free_port()
    environ = {"TRAINER_URL": f"http://127.0.0.1:{trainer_port}"}
    with process(command(server, port), environ) as started:
        started.wait_for(lambda: _listens(port), "listening port")
        yield Front(port, trainer_port, started)


def command(server: str, port: int) -> list[str]:
    app, where = "tests.training.proxied:app", ["--host", "127.0.0.1", "--port", str(port)]
    match server:
        case "uvicorn":
            options = [app, "--loop", "uvloop", "--http", "httptools", *where]
        case "hypercorn":
            options = [app, "--bind", f"127.0.0.1:{port}"]
        case _:
            options = ["--interface", "asgi", app, *where]
    return [sys.executable, "-m", server, *options]


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


@contextlib.asynccontextmanager
async def opened(url: str, **options: float) -> AsyncIterator[Proxy]:
    """A proxy in the test's own loop."""
    proxy = Proxy(url, **options)
    proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()


@pytest.fixture(scope="session")
def uvicorn_front() -> Iterator[Front]:
    with front() as started:
        yield started


@pytest.fixture
async def target(uvicorn_front: Front) -> AsyncIterator[Target]:
    """The trainer behind `uvicorn_front`."""
    async with Target().running(uvicorn_front.trainer_port) as running:
        yield running
