"""SkyRL's engine as the writer of its database: the row in which it publishes its vLLM."""

import contextlib
import os
import secrets
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import psycopg

from tests.support.processes import free_port, process

TABLE = """
    CREATE TABLE engine_state (
        singleton_id INTEGER NOT NULL PRIMARY KEY,
        inference_proxy_url VARCHAR,
        updated_at TIMESTAMP NOT NULL
    )
"""


class Publisher(Protocol):
    """One of the two below; `url` is its database as `upstream.source` takes it."""

    url: str

    def publish(self, url: object) -> None: ...


class Engine:
    """SQLite, in WAL mode; one row, made at the first publication."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(TABLE)

    def run(self, statement: str, *values: object) -> None:
        self._database.execute(statement, values)

    def publish(self, url: object) -> None:
        self.run("INSERT OR REPLACE INTO engine_state VALUES (1, ?, datetime('now'))", url)

    def close(self) -> None:
        self._database.close()


# --- PostgreSQL -----------------------------------------------------------------------------------


class Postgres:
    """A server of its own in a folder of its own, on a port; asks every connection for a password.

    PostgreSQL refuses to run as root, so it runs as another user where the tests are root.
    """

    def __init__(self, folder: Path, port: int, password: str) -> None:
        self.folder = folder
        self.port = port
        self.password = password
        self.url = f"postgresql+asyncpg://tinker:{password}@127.0.0.1:{port}/postgres"

    def command(self) -> list[str]:
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        flags = [flag for name, value in options.items() for flag in ("-c", f"{name}={value}")]
        data = str(self.folder / "data")
        return [*_as_user(), _binary("postgres"), "-D", data, "-p", str(self.port), *flags]

    def init(self) -> None:
        word = self.folder / "password"
        word.write_text(self.password)
        if os.getuid() == 0:
            for path in (self.folder, word):
                shutil.chown(path, _user(), None)
        subprocess.run(
            [
                *(*_as_user(), _binary("initdb"), "-D", str(self.folder / "data"), "-U", "tinker"),
                *("--auth=scram-sha-256", f"--pwfile={word}", "-N", "-E", "UTF8", "--locale=C"),
            ],
            check=True,
            capture_output=True,
            timeout=60,
            cwd=self.folder,
        )

    def run(self, statement: str, *values: object) -> None:
        connection: Any
        with psycopg.connect(self.url.replace("+asyncpg", ""), connect_timeout=5) as connection:
            connection.execute(statement, values)

    def answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            self.run("SELECT 1")
            return True
        return False

    def publish(self, url: object) -> None:
        self.run(
            "INSERT INTO engine_state VALUES (1, %s, now()) ON CONFLICT (singleton_id)"
            " DO UPDATE SET inference_proxy_url = excluded.inference_proxy_url",
            url,
        )


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A running one, with the table and without the row."""
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        made = Postgres(Path(folder), free_port(), f"pw-{secrets.token_hex(8)}")
        made.init()
        with process(made.command()) as running:
            running.wait_for(made.answers, "answer of PostgreSQL", 60.0)
            made.run(TABLE)
            yield made


def _binary(name: str) -> str:
    """Debian keeps them out of the path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else name


def _user() -> str:
    """Who the server runs as where the tests are root."""
    return "nobody"


def _as_user() -> list[str]:
    if os.getuid() != 0:
        return []
    ids = ["--reuid", _user(), "--regid", "nogroup", "--clear-groups"]
    return ["setpriv", *ids, "--pdeathsig", "TERM"]
