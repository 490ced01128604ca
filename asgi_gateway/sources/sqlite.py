"""One value out of a SQLite file that another process writes."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from asgi_gateway.sources import SourceError
from asgi_gateway.sources.aside import Aside

# A writer in WAL mode never holds up a reader; another mode does, for a transaction.
LOCKED_S: Final = 2.0
# For a disk that is slow to wake, or a server of files that is away.
ANSWER_S: Final = 10.0


class SqliteSource:
    """Opens the file read-only for each question, in a thread.

    In WAL mode SQLite needs the files `-wal` and `-shm` beside it: they are there while the writer
    has the database open, else the reader must be allowed to create them.
    """

    def __init__(self, path: str, statement: str) -> None:
        self._path = Path(path)
        self._statement = statement
        self._aside = Aside(self._read, ANSWER_S)

    def __repr__(self) -> str:
        return f"<SqliteSource {self._path}>"

    async def value(self) -> object:
        """First column of the first row; None where there is no row.

        Raises:
            SourceError: no such file or table, it is locked, or no answer in time.
        """
        return await self._aside.ask()

    def _read(self) -> object:
        name = f"file:{quote(str(self._path))}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(name, uri=True, timeout=LOCKED_S)) as database:
                row = database.execute(self._statement).fetchone()
        except sqlite3.Error as error:
            raise SourceError(f"{self._path}: {error}") from error
        return row[0] if row else None
