"""PostgreSQL with a driver that stands in for psycopg: what is asked, and what failures become."""

import asyncio
import sys
from types import ModuleType
from typing import Any, Self

import pytest
from psycopg import conninfo

from asgi_gateway.sources import SourceError
from asgi_gateway.sources.engine_state import engine_state
from asgi_gateway.sources.postgres import PostgresSource

URL = "postgresql+asyncpg://tinker:secret@db:5432/tinker"


class DriverError(Exception):
    pass


class Driver:
    """psycopg.AsyncConnection, and the one connection that it makes."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.open = 0

    async def connect(self, url: str, *, autocommit: bool) -> Self:
        assert autocommit
        self.asked.append(url)
        if isinstance(self.answer, OSError):
            raise self.answer
        self.open += 1
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.open -= 1

    async def execute(self, statement: str) -> Self:
        self.asked.append(statement)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer == "never":
            await asyncio.Event().wait()
        return self

    async def fetchone(self) -> Any:
        return self.answer


def driven(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Driver:
    driver = Driver(answer)
    module: Any = ModuleType("psycopg")
    module.AsyncConnection, module.Error = driver, DriverError
    module.conninfo = conninfo
    monkeypatch.setitem(sys.modules, "psycopg", module)
    monkeypatch.setitem(sys.modules, "psycopg.conninfo", conninfo)
    return driver


@pytest.mark.parametrize(
    ("row", "told"), [(("http://h:1/",), ["http://h:1"]), ((None,), []), (None, [])]
)
async def test_the_row_is_told(monkeypatch: pytest.MonkeyPatch, row: Any, told: list[str]) -> None:
    driver = driven(monkeypatch, row)
    source = engine_state(URL)
    assert await source.current() == told
    assert driver.asked == [
        "postgresql://tinker:secret@db:5432/tinker",
        "SELECT inference_proxy_url FROM engine_state WHERE singleton_id = 1",
    ]
    assert driver.open == 0
    assert "secret" not in repr(source)


@pytest.mark.parametrize(
    "failure", [DriverError("no such table"), OSError("no such table"), ConnectionError("no such")]
)
async def test_failures_are_the_sources(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    driver = driven(monkeypatch, failure)
    with pytest.raises(SourceError, match="PostgreSQL: no such"):
        await engine_state(URL).current()
    assert driver.open == 0


async def test_an_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driven(monkeypatch, "never")
    with pytest.raises(SourceError, match=r"no answer within 0\.01 s"):
        await PostgresSource("postgresql://db", "SELECT 1", answer_s=0.01).value()
    assert driver.open == 0


def test_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SourceError, match=r"psycopg.*asgi-gateway\[postgres\]"):
        engine_state(URL)
