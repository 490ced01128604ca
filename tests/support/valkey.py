"""Debian's redis-server for tests: one, with replicas and Sentinels, and clusters of them.

All are processes of their own with a folder of their own, and keep nothing beyond a test.
"""

import contextlib
import functools
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.processes import START_S, Process, free_port

SLOTS = 16_384


class Valkey:
    """One server on a port of 127.0.0.1. It may be killed, and started again with what it was."""

    def __init__(
        self, folder: Path, *options: str, port: int | None = None, file: Path | None = None
    ) -> None:
        """file: a configuration; where it stands against what tests need, that holds."""
        self.port = free_port() if port is None else port
        self.folder = folder
        self._file = file
        self.password = ""
        # Above its port by a thousand would be taken by another test's.
        self._bus = free_port()
        self.options = options
        self.process: Process
        self.start()

    def __repr__(self) -> str:
        return f"<Valkey on {self.port}>"

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        """As URLs of several hosts have it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it answers."""
        self.launch()
        self.process.wait_for(functools.partial(self.says, "PONG", "PING"), "PONG")

    def launch(self) -> None:
        """Does not wait."""
        command = ["redis-server", *([str(self._file)] if self._file else [])]
        command += ["--port", str(self.port), "--dir", str(self.folder)]
        command += ["--bind", "127.0.0.1", "--save", "", "--enable-debug-command", "yes"]
        command += ["--cluster-port", str(self._bus), "--repl-diskless-sync-delay", "0"]
        self.process = Process([*command, *self.options])

    def kill(self) -> None:
        """It may be started again."""
        self.process.kill()
        self.process.close()

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        return self.process.frozen()

    def close(self) -> None:
        self.process.close()

    def run(self, *arguments: str) -> str:
        """What redis-cli prints."""
        command = ["redis-cli", "-p", str(self.port), "--no-auth-warning"]
        login = ["-a", self.password] if self.password else []
        done = subprocess.run(
            [*command, *login, *arguments], capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout.strip()

    def says(self, wanted: str, *arguments: str) -> bool:
        """Whether redis-cli prints that among others."""
        return wanted in self.run(*arguments)

    def calls(self, command: str) -> int:
        """How often a command was executed since it was started."""
        for line in self.run("INFO", "commandstats").splitlines():
            if line.startswith(f"cmdstat_{command}:calls="):
                return int(line.partition("=")[2].partition(",")[0])
        return 0

    def rejected(self, command: str) -> int:
        """How often a command was refused without being executed."""
        found = re.search(rf"cmdstat_{command}:.*rejected_calls=(\d+)", self.run("INFO", "all"))
        return int(found[1]) if found else 0

    def clients(self, name: str) -> int:
        """How many connections call themselves so."""
        return sum(f" name={name} " in line for line in self.run("CLIENT", "LIST").splitlines())


def wait_for(found: Callable[[], object], what: str, within_s: float = START_S) -> None:
    """Until `found()`, which asks servers; not for an event loop with something else to do."""
    deadline = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < deadline, f"no {what} within {within_s} s"
        time.sleep(0.05)


@contextlib.contextmanager
def valkey(
    folder: Path, *options: str, port: int | None = None, file: Path | None = None
) -> Iterator[Valkey]:
    """`folder` has a folder for it made in it."""
    own = folder / f"valkey-{os.urandom(4).hex()}"
    own.mkdir()
    server = Valkey(own, *options, port=port, file=file)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def replica_of(primary: Valkey, folder: Path, *options: str) -> Iterator[Valkey]:
    """Returns when it has all that the primary has."""
    more = ["--replicaof", "127.0.0.1", str(primary.port), *options]
    with valkey(folder, *more) as replica:
        linked = functools.partial(replica.says, "master_link_status:up", "INFO", "replication")
        replica.process.wait_for(linked, "link to its primary")
        yield replica


# --- Sentinels -----------------------------------------------------------------------------------


@contextlib.contextmanager
def sentinel(primary: Valkey, folder: Path, *, service: str = "store") -> Iterator[Valkey]:
    """One that decides alone, when the primary has not answered for 0.5 s."""
    own = folder / f"sentinel-{os.urandom(4).hex()}"
    own.mkdir()
    port = free_port()
    configuration = own / "sentinel.conf"
    lines = [
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {own}",
        f"sentinel monitor {service} 127.0.0.1 {primary.port} 1",
        f"sentinel down-after-milliseconds {service} 500",
        f"sentinel failover-timeout {service} 2000",
    ]
    configuration.write_text("\n".join(lines) + "\n")
    started = _Sentinel(own, port=port, configuration=configuration)
    try:
        yield started
    finally:
        started.close()


class _Sentinel(Valkey):
    def __init__(self, folder: Path, *, port: int, configuration: Path) -> None:
        self._configuration = configuration
        super().__init__(folder, port=port)

    def launch(self) -> None:
        self.process = Process(["redis-sentinel", str(self._configuration)])


def knows_replica(sentinel: Valkey, replica: Valkey, service: str = "store") -> bool:
    return str(replica.port) in sentinel.run("SENTINEL", "REPLICAS", service)


# --- clusters ------------------------------------------------------------------------------------


class ValkeyCluster:
    """Primaries that share the slots evenly, in the order of `servers`."""

    def __init__(self, servers: list[Valkey]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        return f"valkey+cluster://{','.join(server.name for server in self.servers)}"

    def owner(self, slot: int) -> Valkey:
        return self.servers[slot * len(self.servers) // SLOTS]

    def id(self, server: Valkey) -> str:
        return server.run("CLUSTER", "MYID")

    def move(self, slot: int, target: Valkey) -> None:
        """Give it away at once, with no keys in it."""
        # One who imports it has the newer claim from then on, which a heartbeat of the old owner
        # cannot take away before he is told.
        source = self.id(self.owner(slot))
        target.run("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source)
        for server in (target, *self.servers):
            server.run("CLUSTER", "SETSLOT", str(slot), "NODE", self.id(target))


@contextlib.contextmanager
def cluster(folder: Path, count: int = 3, *options: str) -> Iterator[ValkeyCluster]:
    """Returns when all know of all slots."""
    more = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", *options]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(valkey(folder, *more)) for _ in range(count)]
        for number, server in enumerate(servers):
            first = -(-number * SLOTS // count)
            last = -(-(number + 1) * SLOTS // count) - 1
            server.run("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            server.run("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
        for server in servers[1:]:
            meet(servers[0], server)
        for server in servers:
            wait_for(functools.partial(_whole, server, count), f"whole cluster seen by {server}")
        yield ValkeyCluster(servers)


def meet(one: Valkey, other: Valkey) -> None:
    one.run("CLUSTER", "MEET", "127.0.0.1", str(other.port), str(other._bus))


def _whole(server: Valkey, count: int) -> bool:
    said = server.run("CLUSTER", "INFO")
    return "cluster_state:ok" in said and f"cluster_known_nodes:{count}" in said
