"""The gateway where its upstream is what a database says: moves, outages, and nothing there yet."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from asgi_gateway.sources import SourceError
from asgi_gateway.sources.sqlite import SqliteSource
from asgi_gateway.upstream.following import NONE_PUBLISHED, NOT_READ, UNREADABLE
from tests.faults.judge import asked, counts, judged
from tests.faults.load import load, rate, until
from tests.faults.several import upstream, url_of
from tests.support.engine import Engine, Publisher, postgres
from tests.support.gateway import Driven, driven
from tests.support.held import metric
from tests.support.processes import Served, environment, free_port, process, stand_in
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until as soon
from tests.support.wire import Remote

SLOW = ("--delay-s", "0.3")
RATE = 100.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with contextlib.closing(Engine(tmp_path / "tinker.db")) as made:
        yield made


@contextlib.contextmanager
def follows(source: str, **settings: object) -> Iterator[Served]:
    """`asgi-gateway serve` with a source and no URL."""
    command = [sys.executable, "-m", "asgi_gateway", "serve", "--port", "0"]
    with process(command, environment(upstream__source=source, **settings)) as started:
        line = started.first_line()
        yield Served("serve", int(line.rsplit(":", 1)[1]), started)


# --- under load -----------------------------------------------------------------------------------


async def moved_under_load(publisher: Publisher) -> None:
    """To and fro, noticed by the interval: nothing is lost, nothing runs twice."""
    with stand_in(*SLOW) as one, stand_in(*SLOW) as two:
        publisher.publish(one)
        with follows(publisher.url, upstream__source_interval_s=0.2) as gateway:
            await ready(gateway)
            async with load(gateway.url, one, 600, *rate(RATE), "--style", "future") as running:
                await until(lambda: counts(one)["running"] > 0, "load on the first")
                publisher.publish(two)
                await until(lambda: counts(two)["running"] > 0, "load on the second")
                await until(lambda: counts(one)["running"] == 0, "end of what ran on the first")
                publisher.publish(one)
                await until(lambda: counts(two)["running"] == 0, "end of what ran on the second")
                result = await running.result()
            found = judged(result, asked([one, two]))
            assert (found.lost, found.doubled, found.problems) == (0, 0, [])
            assert result.outcomes.succeeded == 600
            assert "Traceback" not in gateway.process.stderr, gateway.process.story()


def state(gateway: Served) -> str:
    """What the status page shows."""
    with urlopen(f"{gateway.url}/admin/state", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


async def ready(gateway: Served) -> None:
    """Once it has read what is published and what that serves."""
    remote = Remote(gateway.port)
    async with asyncio.timeout(20):
        while (await remote.get("/readyz")).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.servers
async def test_a_row_of_sqlite_that_changes_under_load(engine: Engine) -> None:
    await moved_under_load(engine)


@pytest.mark.system
@pytest.mark.servers
async def test_a_row_of_postgresql_that_changes_under_load() -> None:
    """A real server, which asks for the password; then it goes away, and the last URL stands."""
    database = postgres()
    running = await asyncio.to_thread(database.__enter__)
    try:
        await moved_under_load(running)
        with stand_in() as one:
            running.publish(one)
            with follows(running.url, upstream__source_interval_s=0.2) as gateway:
                await ready(gateway)
                remote = Remote(gateway.port)
                await asyncio.to_thread(database.__exit__, None, None, None)
                await remote.until(lambda now: now["upstream_source_failures_total"] > 0)
                await remote.handshake()
                assert (await remote.poll(await remote.submit())).status == 200
                assert "cannot be told: PostgreSQL: " in gateway.process.stderr
                shown = await asyncio.to_thread(state, gateway)
                assert f"127.0.0.1:{running.port}/postgres" in shown
                for said in (shown, gateway.process.stderr, gateway.process.stdout):
                    assert running.password not in said
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended
            await asyncio.to_thread(database.__exit__, None, None, None)


@pytest.mark.system
@pytest.mark.servers
async def test_a_wrong_password_for_postgresql_is_shown_nowhere() -> None:
    with postgres() as running:
        wrong = running.url.replace(running.password, "wrong%2Fword")
        with follows(wrong) as gateway:
            remote = Remote(gateway.port)
            await remote.until(lambda now: now["upstream_source_failures_total"] > 0)
            answer = await remote.get("/readyz")
            assert (answer.status, UNREADABLE in answer.body.decode()) == (503, True)
            said = gateway.process.stderr + await asyncio.to_thread(state, gateway)
            assert "password authentication failed" in said
            assert "wrong/word" not in said
            assert "wrong%2Fword" not in said


@pytest.mark.servers
async def test_an_upstream_that_died_is_left_without_waiting_for_the_interval(
    engine: Engine,
) -> None:
    """What ran there is submitted again by its client, and what waited goes to the new one."""
    with upstream(*SLOW) as one, stand_in(*SLOW) as two:
        engine.publish(url_of(one))
        with follows(engine.url, upstream__source_interval_s=600.0) as gateway:
            await ready(gateway)
            async with load(gateway.url, two, 400, *rate(RATE), "--style", "future") as running:
                await until(lambda: counts(url_of(one))["running"] > 0, "load on the first")
                one.kill()
                await asyncio.sleep(0.5)
                engine.publish(two)
                await until(lambda: counts(two)["running"] > 0, "load on the second", 10.0)
                result = await running.result()
            found = judged(result, asked([two]))
            assert (found.lost, found.doubled, found.problems) == (0, 0, [])
            assert result.outcomes.succeeded == 400
            now = await Remote(gateway.port).metrics()
            assert 2 <= now["upstream_source_reads_total"] < 20, "at most one a second"


# --- nothing there, and away ----------------------------------------------------------------------


async def reasons(gateway: Driven) -> list[str]:
    told: list[str] = (await gateway.client.get("/readyz")).json().get("reasons", [])
    return [reason for reason in told if "which models" not in reason]


async def asks(gateway: Driven) -> None:
    """One more question, and its answer."""
    before = await reads(gateway)
    await gateway.advance(1.0)
    await soon(lambda: not threads())
    assert await reads(gateway) == before + 1
    await asyncio.sleep(0.01)


async def reads(gateway: Driven) -> float:
    return await scraped(gateway, "upstream_source_reads_total")


async def scraped(gateway: Driven, name: str) -> float:
    return metric((await gateway.client.get("/metrics")).body, name)


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "asgi-gateway-source"]


@contextlib.asynccontextmanager
async def following(source: str, **flags: Any) -> AsyncIterator[Driven]:
    async with driven("", upstream__urls=[], upstream__source=source, **flags) as gateway:
        yield gateway


async def test_before_anything_is_published_nothing_is_lost(
    engine: Engine, upstream: FakeUpstream
) -> None:
    async with following(engine.url) as gateway:
        assert await reasons(gateway) == [f"no upstream is available: {NOT_READ}"]
        await asks(gateway)
        assert await reasons(gateway) == [f"no upstream is available: {NONE_PUBLISHED}"]
        refused = await gateway.client.post("/api/v1/create_session", {"tags": []})
        assert refused.status == 200
        engine.publish(upstream.url)
        await asks(gateway)
        assert await reasons(gateway) == []
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        assert (await gateway.poll(request_id).response()).status == 200
        # The engine stops its vLLM; samplers stay, new samples are to be repeated.
        engine.publish(None)
        await gateway.advance(29.0)
        await asks(gateway)
        assert (await gateway.submit(1)).status == 429
        assert await reasons(gateway) == [f"no upstream is available: {NONE_PUBLISHED}"]
        engine.publish(upstream.url)
        await asks(gateway)
        assert (await gateway.submit(1)).status == 200
        assert await scraped(gateway, "upstream_source_failures_total") == 0


async def test_a_database_that_goes_away_leaves_the_last_url(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    path = tmp_path / "tinker.db"
    async with following(f"sqlite:///{path}") as gateway:
        await asks(gateway)
        assert await reasons(gateway) == [f"no upstream is available: {UNREADABLE}"]
        assert await scraped(gateway, "upstream_source_failures_total") == 1
        engine = Engine(path)
        engine.publish(upstream.url)
        engine.close()
        await asks(gateway)
        await gateway.handshake()
        path.unlink()
        for _ in range(3):
            await gateway.advance(29.0)
            await asks(gateway)
        assert (await gateway.submit()).status == 200
        assert await reasons(gateway) == []
        assert await scraped(gateway, "upstream_source_failures_total") == 4
        assert await scraped(gateway, "upstream_source_age_seconds") == 90


async def test_what_is_no_url_changes_nothing(engine: Engine, upstream: FakeUpstream) -> None:
    engine.publish(upstream.url)
    async with following(engine.url) as gateway:
        await asks(gateway)
        for url in ("file:///etc/passwd", "http://user:word@h:1", "http://h:1/ x"):
            engine.publish(url)
            await gateway.advance(29.0)
            await asks(gateway)
        await gateway.handshake()
        assert (await gateway.submit()).status == 200


async def test_connects_that_fail_ask_at_most_once_a_second(engine: Engine) -> None:
    engine.publish(f"http://127.0.0.1:{free_port()}")
    flags = {"upstream__breaker_failures": 0, "upstream__health_interval_s": 0}
    async with following(engine.url, **flags, models__base=["stand-in"]) as gateway:
        await asks(gateway)
        (there,) = gateway.gateway.fleet.upstreams
        assert gateway.gateway.fleet.doubted is not None
        for _ in range(50):
            gateway.gateway.fleet.doubted(there.url)
            await gateway.advance(0.1)
            await soon(lambda: not threads())
            await asyncio.sleep(0)
        assert await reads(gateway) in (5, 6)


async def test_a_locked_database_holds_up_nobody(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream
) -> None:
    """The question waits in its thread; neither the loop nor the end of the gateway waits."""
    engine.publish(upstream.url)
    async with following(engine.url) as gateway:
        await asks(gateway)
        engine.run("PRAGMA journal_mode=DELETE")
        engine.run("BEGIN EXCLUSIVE")
        await gateway.advance(30.0)
        assert threads()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await gateway.handshake()
        assert (await gateway.submit()).status == 200
    assert loop.time() - began < 1.0
    assert threads(), "it is still waiting"
    engine.run("ROLLBACK")
    await soon(lambda: not threads())


# --- settings -------------------------------------------------------------------------------------


def check(**settings: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "asgi_gateway", "check-config"]
    with process(command, environment(**settings)) as ran:
        return ran.wait(), ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("mysql://u:secret@h/db", "the database must be"),
        ("sqlite:///", "a SQLite URL is"),
        ("postgresql://u:se@cret@h/db", "must have them as %40"),
        ("postgresql://u:se/cret@h/db", "must have them as %40"),
        ("postgresql://u:se%zzcret@h/db", "no URL that libpq can read"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused_without_its_password(
    source: str, says: str
) -> None:
    status, said = check(upstream__source=source)
    assert status == 2
    assert says in said
    assert "upstream.source" in said
    assert "cret" not in said.replace("secret (", "")


def test_urls_and_a_source_together_are_refused(engine: Engine) -> None:
    status, said = check(upstream__source=engine.url, upstream__urls="http://127.0.0.1:1")
    assert (status, "exclude each other" in said) == (2, True)
    assert check(upstream__source=engine.url) == (0, "the configuration is valid\n")


def test_the_password_is_not_in_show_config() -> None:
    command = [sys.executable, "-m", "asgi_gateway", "show-config"]
    environ = environment(upstream__source="postgresql://user:secret@db:5432/tinker?password=more")
    with process(command, environ) as ran:
        assert ran.wait() == 0
        (line,) = [one for one in ran.stdout.splitlines() if one.startswith("upstream.source =")]
    assert line == "upstream.source = 'postgresql://db:5432/tinker'  # environment"


def test_without_psycopg_the_extra_is_named(tmp_path: Path) -> None:
    """As where it is not installed: importing it fails."""
    (tmp_path / "psycopg.py").write_text("raise ImportError('No module named psycopg')\n")
    told = environment(upstream__source="postgresql://user:secret@db/tinker")
    command = [sys.executable, "-m", "asgi_gateway", "serve", "--port", "0"]
    with process(command, {**told, "PYTHONPATH": str(tmp_path)}) as ran:
        assert ran.wait() == 2
        assert "asgi-gateway[postgres]" in ran.stderr
        assert "secret" not in ran.stderr
        assert "Traceback" not in ran.stderr


async def test_the_database_is_only_read(engine: Engine) -> None:
    source = SqliteSource(str(engine.path), "DELETE FROM engine_state")
    with pytest.raises(SourceError, match="readonly"):
        await source.value()
