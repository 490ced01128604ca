"""One value out of a PostgreSQL database, by psycopg, which is an optional extra."""

import asyncio
import re
from typing import Any, Final

from asgi_gateway.sources import SourceError
from asgi_gateway.sources.aside import Aside

# Everything together: name, connect, login, question.
ANSWER_S: Final = 5.0
# What the driver may still do after that, before its thread is given up.
BESIDE_S: Final = 5.0
HIDDEN: Final = "(hidden)"


class PostgresSource:
    """Opens a connection for each question: it is asked rarely, and a pooler may sit in between.

    The driver has an event loop and a thread of its own, for it reads files, may ask a ticket
    server and encrypts, all of it without giving way.
    """

    def __init__(self, url: str, statement: str, answer_s: float = ANSWER_S) -> None:
        """Takes any URL that libpq takes.

        Raises:
            SourceError: psycopg is not installed.
            ValueError: it is no such URL; the text does not quote it.
        """
        try:
            import psycopg
            import psycopg.conninfo
        except ImportError as error:
            raise SourceError(
                f"PostgreSQL needs psycopg ({error}): pip install 'asgi-gateway[postgres]'"
            ) from None
        self._psycopg: Any = psycopg
        self._password = _password(psycopg, url)
        self._aside = Aside(lambda: asyncio.run(self._ask()), answer_s + BESIDE_S)
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
        return await self._aside.ask()

    async def _ask(self) -> object:
        try:
            async with asyncio.timeout(self._answer_s):
                connecting = self._psycopg.AsyncConnection.connect(self._url, autocommit=True)
                async with await connecting as connection:
                    row = await (await connection.execute(self._statement)).fetchone()
        except TimeoutError:
            raise SourceError(f"PostgreSQL: no answer within {self._answer_s} s") from None
        except (self._psycopg.Error, OSError) as error:
            raise SourceError(f"PostgreSQL: {self._without_password(str(error))}") from None
        return row[0] if row else None

    def _without_password(self, text: str) -> str:
        """On one line."""
        text = " ".join(text.split())
        return text.replace(self._password, HIDDEN) if self._password else text


def _password(psycopg: Any, url: str) -> str:
    """The one in a URL, empty without.

    Raises:
        ValueError: libpq cannot read it, or would take a part of the password for a host or a
            database and quote that in its errors.
    """
    authority, *more = re.split(r"[/?]", url.partition("://")[2], maxsplit=1)
    if authority.count("@") > 1 or "@" in "".join(more):
        raise ValueError("a password with @, / or ? must have them as %40, %2F and %3F")
    try:
        return str(psycopg.conninfo.conninfo_to_dict(url).get("password") or "")
    except psycopg.Error:
        raise ValueError("it is no URL that libpq can read; is the password escaped?") from None
