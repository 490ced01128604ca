"""One value out of a PostgreSQL database, by psycopg, which is an optional extra."""

import asyncio
from typing import Any, Final

from asgi_gateway.sources import SourceError

# Everything together: name, connect, login, question.
ANSWER_S: Final = 5.0


class PostgresSource:
    """Opens a connection for each question: it is asked rarely, and a pooler may sit in between."""

    def __init__(self, url: str, statement: str, answer_s: float = ANSWER_S) -> None:
        """Takes any URL that libpq takes.

        Raises:
            SourceError: psycopg is not installed.
        """
        try:
            import psycopg
        except ImportError as error:
            raise SourceError(
                f"PostgreSQL needs psycopg ({error}): pip install 'asgi-gateway[postgres]'"
            ) from None
        self._psycopg: Any = psycopg
        self._url = url
        self._statement = statement
        self._answer_s = answer_s

    def __repr__(self) -> str:
        # The URL has a password.
        return "<PostgresSource>"

    async def value(self) -> object:
        """First column of the first row; None where there is no row.

        Raises:
            SourceError: no answer in time, no connection, or no such table.
        """
        try:
            async with asyncio.timeout(self._answer_s):
                connecting = self._psycopg.AsyncConnection.connect(self._url, autocommit=True)
                async with await connecting as connection:
                    row = await (await connection.execute(self._statement)).fetchone()
        except TimeoutError:
            raise SourceError(f"PostgreSQL: no answer within {self._answer_s} s") from None
        except (self._psycopg.Error, OSError) as error:
            raise SourceError(f"PostgreSQL: {error}") from error
        return row[0] if row else None
