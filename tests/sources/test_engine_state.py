"""What SkyRL publishes, out of a SQLite file as SkyRL keeps it."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from asgi_gateway.sources import SourceError
from asgi_gateway.sources.engine_state import engine_state
from tests.support.engine import Engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with contextlib.closing(Engine(tmp_path / "tinker 100%23#.db")) as made:
        yield made


async def test_what_is_published_is_told(engine: Engine) -> None:
    """Before the first model, with an engine, after it moved and after it was torn down."""
    source = engine_state(engine.url)
    assert await source.current() == []
    engine.publish("http://10.0.0.5:8080")
    assert await source.current() == ["http://10.0.0.5:8080"]
    engine.publish("http://10.0.0.6:8080/")
    assert await source.current() == ["http://10.0.0.6:8080"]
    engine.publish(None)
    assert await source.current() == []


async def test_a_writer_holds_nobody_up_and_is_not_held_up(engine: Engine) -> None:
    engine.publish("http://old:1")
    source = engine_state(engine.url)
    engine.run("BEGIN IMMEDIATE")
    engine.publish("http://new:1")
    assert await source.current() == ["http://old:1"]
    engine.run("COMMIT")
    assert await source.current() == ["http://new:1"]


async def test_after_the_writer_has_gone(engine: Engine) -> None:
    """A clean end removes what belongs to WAL mode; the row is still read."""
    engine.publish("http://h:1")
    engine.close()
    assert await engine_state(engine.url).current() == ["http://h:1"]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/x",
        "h:8080",
        "",
        "http://",
        "http://user:secret@h:1",
        "http://user:secret@h:99999",
        "http://h:1/?a=b",
        "http://h:1/#a",
        "http://h:99999",
        "http://[::1",
        "http://h:0",
        "http://h:1/a b",
        "http://h:1/\r\nx-other: 1",
        "http://b\u00fccher:1",
        b"http://h:1",
        7,
    ],
)
async def test_what_is_no_url_is_not_told(engine: Engine, url: object) -> None:
    engine.publish(url)
    with pytest.raises(SourceError, match="inference_proxy_url") as raised:
        await engine_state(engine.url).current()
    assert "secret" not in str(raised.value)


async def test_no_file_no_table_no_database(tmp_path: Path) -> None:
    missing = engine_state(f"sqlite:///{tmp_path}/missing.db")
    with pytest.raises(SourceError, match=r"missing\.db: unable to open"):
        await missing.current()
    assert not os.listdir(tmp_path), "reading makes no file"
    sqlite3.connect(tmp_path / "empty.db").close()
    with pytest.raises(SourceError, match="no such table: engine_state"):
        await engine_state(f"sqlite:///{tmp_path}/empty.db").current()
    (tmp_path / "text.db").write_text("not a database, " * 100)
    with pytest.raises(SourceError, match="not a database"):
        await engine_state(f"sqlite:///{tmp_path}/text.db").current()


async def test_a_locked_database_cannot_tell(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asgi_gateway.sources.sqlite.LOCKED_S", 0.01)
    engine.publish("http://h:1")
    engine.run("PRAGMA journal_mode=DELETE")
    engine.run("BEGIN EXCLUSIVE")
    with pytest.raises(SourceError, match="locked"):
        await engine_state(engine.url).current()


@pytest.mark.parametrize(
    "url",
    [
        "mysql://h/tinker",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://host/tinker.db",
        "sqlite:///tinker.db?mode=rw",
        "tinker.db",
        "",
    ],
)
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"SQLite URL|database must be"):
        engine_state(url)


async def test_a_driver_in_the_scheme_and_a_relative_path(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.publish("http://h:1")
    monkeypatch.chdir(tmp_path)
    source = engine_state(f"sqlite+aiosqlite:///{engine.path.name}")
    assert await source.current() == ["http://h:1"]
