"""The row in which SkyRL's engine publishes the vLLM that it manages.

Table `engine_state`, one row with `singleton_id` 1, column `inference_proxy_url`: the URL of the
router or vLLM, NULL while no engine runs (before the first model, after the last was deleted). The
database is the one that SkyRL's `database_url` names, SQLite or PostgreSQL.
"""

import re
from typing import Final

from asgi_gateway.addresses import fault_of
from asgi_gateway.sources import SourceError, UrlSource
from asgi_gateway.sources.postgres import PostgresSource
from asgi_gateway.sources.sqlite import SqliteSource

STATEMENT: Final = "SELECT inference_proxy_url FROM engine_state WHERE singleton_id = 1"


class EngineState:
    """The published URL, checked; `reader` answers with the column, None without a row.

    A database may hold anything, so what is in it is checked as a setting would be.
    """

    def __init__(self, reader: SqliteSource | PostgresSource) -> None:
        self._reader = reader

    def __repr__(self) -> str:
        return f"<EngineState in {self._reader}>"

    async def current(self) -> list[str]:
        value = await self._reader.value()
        return [] if value is None else [_checked(value)]


def engine_state(database_url: str) -> UrlSource:
    """The source for a database, whose URL is spelt as SkyRL and SQLAlchemy do.

    `sqlite:////var/lib/tinker.db`, `sqlite:///relative.db`, `postgresql://user:secret@host/tinker`;
    a driver in the scheme (`postgresql+asyncpg`) means nothing here. The path of a file is taken as
    it stands, without escapes.

    Raises:
        ValueError: another database, a SQLite URL without a file or with what is no path, one for
            PostgreSQL that its driver cannot read.
        SourceError: PostgreSQL, whose driver is not installed.
    """
    scheme, separator, rest = database_url.partition("://")
    backend = scheme.partition("+")[0]
    if separator and backend in ("postgresql", "postgres"):
        return EngineState(PostgresSource(f"postgresql://{rest}", STATEMENT))
    if separator and backend == "sqlite":
        host, slash, path = rest.partition("/")
        if host or not slash or not path or path == ":memory:" or "?" in path:
            raise ValueError("a SQLite URL is sqlite:///PATH, with nothing behind the path")
        return EngineState(SqliteSource(path, STATEMENT))
    raise ValueError("the database must be sqlite:///PATH or postgresql://...")


def _checked(value: object) -> str:
    """An http(s) URL without credentials, query and fragment; it is not quoted, for it may have."""
    url = value.strip() if isinstance(value, str) else ""
    if fault_of(url) is None and not re.search(r"[@?#]", url):
        return url.rstrip("/")
    raise SourceError("inference_proxy_url is no http(s) URL, or one with more than host and path")
