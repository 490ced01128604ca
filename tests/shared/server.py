"""A redis-server of a test's own, and a blocking stand-in for the connection."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import valkey
from valkey.exceptions import ValkeyError

from asgi_gateway.shared.commands import Argument, Command
from asgi_gateway.shared.samples import Lifetimes
from asgi_gateway.shared.verbs import Verbs
from tests.support.processes import START_S, Process, free_port

T = TypeVar("T")

LIFETIMES = Lifetimes(
    undelivered=2_048_000, delivered=300_000, lost=10_000_000, fence=20_000_000, keep=604_800_000
)


@contextlib.contextmanager
def cluster_of_one() -> Iterator[Any]:
    """It refuses a function whose keys are not all of one slot."""
    ports = ("--port", str(free_port()), "--cluster-port", str(free_port()))
    options = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes", *ports)
    with redis_server(*options) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        deadline = time.monotonic() + START_S
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            assert time.monotonic() < deadline, "the cluster is down"
            time.sleep(0.02)
        yield client


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[Any]:
    """A client of a server that listens on a socket file and keeps nothing."""
    with tempfile.TemporaryDirectory(prefix="shared-") as folder:
        path = Path(folder, "socket")
        command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", ""]
        server = Process([*command, "--appendonly", "no", "--dir", folder, *options])
        client: Any = valkey.Valkey(unix_socket_path=str(path))
        try:
            server.wait_for(lambda: path.exists() and answers(client), "answer")
            yield client
        finally:
            client.close()
            server.close()


def answers(client: Any) -> bool:
    with contextlib.suppress(ValkeyError):
        return bool(client.ping())
    return False


class Blocking:
    """Calls that are answered before they return."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.sent: list[Sequence[Argument]] = []

    def call(
        self, group: int | None, args: Sequence[Argument], done: Callable[[Any], None]
    ) -> None:
        self.sent.append(args)
        connection = self.client.connection_pool.get_connection("call")
        try:
            connection.send_command(*args)
            reply: Any = connection.read_response()
        except ValkeyError as error:
            reply = error
        finally:
            self.client.connection_pool.release(connection)
        done(reply)


def run(verbs: Verbs, command: Command[T]) -> T:
    """The value, or what is raised."""
    got: list[T | Exception] = []
    verbs.send(command, got.append)
    (value,) = got
    if isinstance(value, Exception):
        raise value
    return value
