"""Sentinels name the primary; after a failover they name another."""

import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared.linked import Replies, linked, told, trouble_of
from tests.support.fake_valkey import FakeValkey, bulk, hello
from tests.support.processes import free_port
from tests.support.valkey import (
    Valkey,
    knows_replica,
    replica_of,
    sentinel,
    valkey,
    wait_for,
)
from tests.support.waiting import until


class Watched:
    def __init__(self, primary: Valkey, replica: Valkey, sentinel: Valkey) -> None:
        self.primary = primary
        self.replica = replica
        self.sentinel = sentinel

    @property
    def url(self) -> str:
        """With a Sentinel in front that does not exist."""
        return f"valkey+sentinel://127.0.0.1:{free_port()},{self.sentinel.name}/store"


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with (
        valkey(tmp_path) as primary,
        replica_of(primary, tmp_path) as replica,
        sentinel(primary, tmp_path) as watcher,
    ):
        wait_for(functools.partial(knows_replica, watcher, replica), "replica at the Sentinel")
        yield Watched(primary, replica, watcher)


@pytest.mark.system
async def test_the_primary_that_they_name_is_used(watched: Watched) -> None:
    async with linked(watched.url) as link:
        assert await link.ask(0, ["SET", "x", "1"]) == b"OK"
    assert watched.primary.run("GET", "x") == "1"
    assert "does not know 'other'" in await trouble_of(
        f"valkey+sentinel://{watched.sentinel.name}/other"
    )
    assert "is not a Sentinel" in await trouble_of(
        f"valkey+sentinel://{watched.primary.name}/store"
    )


@pytest.mark.system
async def test_a_primary_that_is_killed_is_replaced(watched: Watched) -> None:
    async with linked(watched.url, timeout_s=15.0) as link:
        heard: list[bytes | str] = []
        subscription = link.subscribe("c", heard.append, lambda: heard.append("gap"))
        assert await link.ask(0, ["SET", "x", "1"]) == b"OK"
        assert watched.primary.run("WAIT", "1", "5000") == "1"
        await until(lambda: subscription.up)
        watched.primary.kill()
        replies = Replies()
        await until(lambda: not link.up)
        for _ in range(100):
            link.call(0, ["INCR", "x"], replies.append)
        await told(replies, 100, 15.0)
        assert replies == list(range(2, 102))
        assert watched.replica.run("GET", "x") == "101"
        await until(lambda: subscription.up, 10.0)
        await link.ask(0, ["PUBLISH", "c", "there"])
        await until(lambda: heard[-1:] == [b"there"])
        assert heard == ["gap", "gap", b"there"]


@pytest.mark.system
async def test_a_frozen_primary_that_wakes_up_is_not_used_again(watched: Watched) -> None:
    async with linked(watched.url) as link:
        replies = Replies()
        with watched.primary.frozen():
            link.call(0, ["INCR", "x"], replies.append)
            await told(replies, 1)
            assert replies.kinds == ["Unanswered"]
            await until(lambda: link.up, 15.0)
            assert await link.ask(0, ["INCR", "y"]) == 1
        assert await link.ask(0, ["INCR", "y"]) == 2
        assert watched.replica.run("GET", "y") == "2"


@pytest.mark.system
async def test_a_failover_that_was_asked_for(watched: Watched) -> None:
    """The old primary lives on as a replica: it is left, and what it refuses is done elsewhere."""
    async with linked(watched.url, timeout_s=15.0) as link:
        replies, stopped = Replies(), asyncio.Event()
        heard: list[bytes | str] = []
        subscription = link.subscribe("c", heard.append, lambda: heard.append("gap"))
        await until(lambda: subscription.up)

        async def write() -> None:
            while not stopped.is_set():
                link.call(0, ["INCR", "x"], replies.append)
                await asyncio.sleep(0.002)

        writing = asyncio.create_task(write())
        asked = functools.partial(watched.sentinel.says, "OK", "SENTINEL", "FAILOVER", "store")
        await until(asked, 15.0)
        moved = functools.partial(watched.replica.says, "role:master", "INFO", "replication")
        await until(moved, 15.0)
        # The Sentinel tells the old one only seconds later; until then it would take writes.
        assert watched.primary.says("role:master", "INFO", "replication")
        before = int(watched.replica.run("GET", "x") or 0)
        await until(lambda: int(watched.replica.run("GET", "x") or 0) > before + 100, 4.0)
        await until(lambda: subscription.up)
        await link.ask(0, ["PUBLISH", "c", "at the new one"])
        await until(lambda: heard[-1:] == [b"at the new one"], 2.0)
        assert heard == ["gap", "gap", b"at the new one"]
        assert watched.primary.says("role:master", "INFO", "replication")
        stopped.set()
        await writing
        await until(lambda: link.waiting == 0, 15.0)
        # In flight when the server ended its connections.
        assert set(replies.kinds) <= {"int", "Unanswered"}
        assert replies.kinds.count("Unanswered") < 20
        assert link.up


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"*-1\r\n", "does not know 'store'"),
        (b"*2\r\n" + bulk("") + bulk("1"), "names no host"),
        (b"*2\r\n" + bulk("h") + bulk("x"), "names no host"),
        (b"*1\r\n" + bulk("h"), "names no host"),
        (b"+OK\r\n", "names no host"),
        (b"-ERR no\r\n", "ERR no"),
        (b"", "no reply within 0.5 s"),
        (None, "closed"),
    ],
)
async def test_a_sentinel_that_names_none(said: bytes | None, why: str) -> None:
    """The next one is asked; only when none is left is that told."""
    one, other, last = (FakeValkey().running() for _ in range(3))
    async with one as bad, other as good, last as store:
        for fake in (bad, good):
            fake.answers["HELLO"] = hello(mode="sentinel")
        bad.answers["SENTINEL"] = said
        good.answers["SENTINEL"] = b"*2\r\n" + bulk("127.0.0.1") + bulk(str(store.port))
        url = f"valkey+sentinel://{bad.name}/store"
        assert why in await trouble_of(url, timeout_s=0.5)
        both = f"valkey+sentinel://{bad.name},{good.name}/store"
        async with linked(both, timeout_s=0.5) as link:
            assert await link.ask(0, ["GET"]) == b"OK"
            # Then it is the one that answers that is asked first.
            asked = len(bad.commands)
            store.hang_up()
            await until(lambda: store.connections == 2)
            await until(lambda: link.up)
            assert len(bad.commands) == asked


async def test_a_sentinel_that_names_an_old_primary_is_not_the_last_word() -> None:
    one, other = FakeValkey().running(), FakeValkey().running()
    old, new = FakeValkey().running(), FakeValkey().running()
    async with one as stale, other as fresh, old as replica, new as primary:
        replica.answers["HELLO"] = hello(role="replica")
        for fake, names in ((stale, replica), (fresh, primary)):
            fake.answers["HELLO"] = hello(mode="sentinel")
            fake.answers["SENTINEL"] = b"*2\r\n" + bulk("127.0.0.1") + bulk(str(names.port))
        async with linked(f"valkey+sentinel://{stale.name},{fresh.name}/store") as link:
            assert await link.ask(0, ["GET"]) == b"OK"
            assert primary.commands == [[b"GET"]]


async def test_each_has_its_own_login() -> None:
    async with FakeValkey().running() as watcher, FakeValkey().running() as store:
        seen: set[tuple[bytes, ...]] = set()

        def greeted(answer: bytes, command: list[bytes]) -> bytes:
            seen.add(tuple(command[2:5]))
            return answer

        watcher.answers["HELLO"] = functools.partial(greeted, hello(mode="sentinel"))
        watcher.answers["SENTINEL"] = b"*2\r\n" + bulk("127.0.0.1") + bulk(str(store.port))
        store.answers["HELLO"] = functools.partial(greeted, hello())
        url = f"valkey+sentinel://u:p@{watcher.name}/s?sentinel_password=q"
        async with linked(url):
            assert seen == {(b"AUTH", b"default", b"q"), (b"AUTH", b"u", b"p")}
