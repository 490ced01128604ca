"""SIGUSR2 and SIGHUP: every worker is replaced by a new one, or reads its settings again."""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.processes import stand_in
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until
from tests.support.wire import SDK_HEADERS, Remote, wire
from tests.support.workers import (
    Workers,
    another,
    counted,
    ended,
    on,
    wire_to,
    workers,
)

pytestmark = pytest.mark.servers

CLIENTS = 8
DONE = "the rolling restart is done"


class Asking:
    """Clients that ask without a pause: some on a new connection each time, some on a kept one,
    which they leave where the answer says so."""

    def __init__(self, served: Workers) -> None:
        self._served = served
        self._stop = False
        self.seen: Counter[str] = Counter()
        self.fewest = len(served.accepting())
        asking = [self._anew() for _ in range(CLIENTS)] + [self._kept() for _ in range(CLIENTS)]
        self._tasks = [asyncio.create_task(each) for each in (*asking, self._count())]

    async def _count(self) -> None:
        while not self._stop:
            self.fewest = min(self.fewest, len(self._served.accepting()))
            await asyncio.sleep(0.01)

    async def _anew(self) -> None:
        while not self._stop:
            try:
                answer = await Remote(self._served.port).get("/livez")
            except (OSError, asyncio.IncompleteReadError) as error:
                self.seen[type(error).__name__] += 1
            else:
                self.seen[f"anew {answer.status}"] += 1

    async def _kept(self) -> None:
        while not self._stop:
            async with wire(self._served.port) as connection:
                while not self._stop:
                    try:
                        answer = await connection.ask(
                            "POST", "/api/v1/create_session", {"tags": []}, SDK_HEADERS
                        )
                    except (OSError, asyncio.IncompleteReadError) as error:
                        self.seen[type(error).__name__] += 1
                        break
                    self.seen[f"kept {answer.status}"] += 1
                    if answer.headers.get(b"connection") == b"close":
                        self.seen["moved"] += 1
                        break

    async def end(self) -> None:
        self._stop = True
        async with asyncio.timeout(30):
            await asyncio.gather(*self._tasks)


@contextlib.asynccontextmanager
async def asking(served: Workers) -> AsyncIterator[Asking]:
    load = Asking(served)
    try:
        yield load
    finally:
        await load.end()


async def test_a_rolling_restart_refuses_nobody(upstream: FakeUpstream) -> None:
    with workers(upstream.url, drain__predrain_s=0.5, drain__grace_s=20) as served:
        before = served.members()
        async with asking(served) as load:
            served.process.signal(signal.SIGUSR2)
            await until(lambda: DONE in served.process.stderr, 60)
        assert set(load.seen) == {"anew 200", "kept 200", "moved"}, load.seen
        assert load.seen["moved"] >= CLIENTS
        assert load.fewest == 2
        after = served.members()
        assert len(after) == 2
        assert not {member.pid for member in before} & {member.pid for member in after}
        assert not [member for member in before if member.here]
        assert [member.slot for member in after] == [2, 0]
        served.process.signal(signal.SIGUSR2)
        await until(lambda: served.process.stderr.count(DONE) == 2, 60)
        assert [member.slot for member in served.members()] == [1, 2]
        served.process.terminate()
        assert await ended(served.process) == 0
        assert "Traceback" not in served.process.stderr


async def test_what_the_old_ones_run_is_finished(tmp_path: Path) -> None:
    with (
        stand_in("--gen-seconds", "2") as upstream,
        workers(upstream, drain__predrain_s=0, drain__grace_s=30) as served,
    ):
        old, _ = served.members()
        async with on(served, old) as client:
            request_id = await client.submit()
            async with wire_to(served, old) as waiting, wire_to(served, old) as idle:
                client.send_poll(waiting, request_id)
                served.process.signal(signal.SIGUSR2)
                await until(lambda: "draining for at most 30 s" in served.process.stderr, 20)
                assert old.here
                refused = await client.post("/api/v1/asample", client.sample())
                assert (refused.status, refused.headers[b"connection"]) == (503, b"close")
                answer = await waiting.read()
                assert (answer.status, answer.headers[b"connection"]) == (200, b"close")
                assert await idle.ended()
        await until(lambda: DONE in served.process.stderr, 60)


async def test_a_new_one_that_fails_ends_the_rolling_restart(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    with stand_in() as url:
        good = f'upstream.urls = ["{url}"]\n'
        file.write_text(good)
        with workers(url, config=file) as served:
            before = served.members()
            file.write_text("poll.hold_s = 1000\n")
            served.process.signal(signal.SIGUSR2)
            said = (
                "ERROR asgi_gateway.workers.roll: the rolling restart stops, the other workers"
                " stay: the new worker ended with status 2\n"
            )
            await until(lambda: said in served.process.stderr, 20)
            assert [member.pid for member in served.members()] == [m.pid for m in before]
            assert (await Remote(served.port).get("/livez")).status == 200
            file.write_text(good)
            served.process.signal(signal.SIGUSR2)
            await until(lambda: DONE in served.process.stderr, 60)
            assert not {m.pid for m in served.members()} & {m.pid for m in before}


async def test_one_that_dies_in_a_rolling_restart_has_one_successor(upstream: FakeUpstream) -> None:
    with workers(upstream.url) as served:
        first, second = served.members()
        served.process.signal(signal.SIGUSR2)
        await until(lambda: len(served.members()) == 3, 20)
        async with served.members()[-1].frozen():  # before it accepts
            first.kill()
            second.kill()
            await until(lambda: served.process.stderr.count("ended with signal SIGKILL") == 2, 20)
        await until(lambda: DONE in served.process.stderr, 60)
        await until(lambda: len(served.accepting()) == 2, 20)
        assert len(served.members()) == 2
        assert served.process.stderr.count("another one is being started") == 1
        assert served.process.stderr.count("another one is started") == 1


async def test_one_that_is_asked_for_meanwhile_comes_after_it(upstream: FakeUpstream) -> None:
    """What it is for may have changed since the first began."""
    with workers(upstream.url) as served:
        served.process.signal(signal.SIGUSR2)
        await until(lambda: "rolling restart of 2 workers" in served.process.stderr)
        between = served.members()
        for _ in range(3):
            served.process.signal(signal.SIGUSR2)
        await until(lambda: served.process.stderr.count(DONE) == 2, 60)
        assert not {m.pid for m in served.members()} & {m.pid for m in between}
        served.process.terminate()
        assert await ended(served.process) == 0
        assert served.process.stderr.count(DONE) == 2


async def test_sighup_reaches_them_all(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    with stand_in() as url:
        file.write_text(f'upstream.urls = ["{url}"]\n')
        with workers(url, config=file) as served:
            members = served.members()
            file.write_text(f'upstream.urls = ["{url}"]\nlog.level = "info"\npoll.hold_s = 3\n')
            served.process.signal(signal.SIGHUP)
            for member in members:
                said = f"[worker {member.slot}] asgi_gateway.reloads: the settings were read again"
                await until(lambda said=said: said in served.process.stderr, 20)  # type: ignore[misc]
                assert counted(member.own_metrics(), "config_reloads_total") == 1
            assert [member.pid for member in served.members()] == [m.pid for m in members]
            await Remote(served.port).until(lambda now: now["config_reloads_total"] == 2)
            members[0].signal(signal.SIGTERM)
            await another(served, members)
            assert f"worker 0 (process {members[0].pid}) ended with" in served.process.stderr
