"""Slots and the line in front of them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from loadgen.scheduler import Scheduler
from loadgen.settings import Settings
from loadgen.upstream import Upstream, running
from tests.loadgen.test_upstream import Client, post, until


def test_first_come_first_served() -> None:
    line: Scheduler[str] = Scheduler(2)
    assert [line.enter(name, 1) for name in "abcd"] == [True, True, False, False]
    assert len(line) == 2
    assert line.leave("b") == ["c"]
    assert line.leave("a") == ["d"]
    assert (line.leave("c"), line.leave("d"), line.leave("nobody")) == ([], [], [])
    assert repr(line) == "<Scheduler 2 of 2 free, 0 waiting>"


def test_nobody_overtakes_one_that_needs_more() -> None:
    line: Scheduler[str] = Scheduler(4)
    line.enter("three", 3)
    assert not line.enter("two", 2)
    assert not line.enter("one", 1)
    assert line.leave("three") == ["two", "one"]


def test_one_that_needs_more_than_there_is_gets_all() -> None:
    line: Scheduler[str] = Scheduler(2)
    assert line.enter("nine", 9)
    assert not line.enter("one", 1)
    assert line.leave("nine") == ["one"]


def test_leaving_the_line_lets_those_behind_in() -> None:
    line: Scheduler[str] = Scheduler(2)
    line.enter("a", 1)
    line.enter("large", 2)
    line.enter("b", 1)
    assert line.leave("large") == ["b"]


async def asked(server: Upstream, stack: AsyncExitStack, count: int) -> list[Client]:
    clients = []
    for _ in range(count):
        client = await stack.enter_async_context(Client(server))
        before = server.counts.running
        await client.send(post(f"r{before}"))
        await until(lambda before=before: server.counts.running == before + 1)  # type: ignore[misc]
        clients.append(client)
    return clients


async def test_generations_take_turns_and_say_so() -> None:
    settings = Settings(port=0, delay_s=0.15, max_num_seqs=2)
    async with running(settings) as server, AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()
        began = loop.time()
        clients = await asked(server, stack, 5)
        watcher = await stack.enter_async_context(Client(server))
        text = (await watcher.get("/metrics")).body.decode()
        assert '\nvllm:num_requests_running{engine="0",model_name="stand-in"} 2\n' in text
        assert '\nvllm:num_requests_waiting{engine="0",model_name="stand-in"} 3\n' in text
        assert "\nloadgen_upstream_queued 3\n" in text
        done: list[float] = []
        for client in clients:
            assert (await client.receive()).status == 200
            done.append(loop.time() - began)
        # Two at a time: after one, one, two, two and three generations, and never sooner.
        assert all(at >= 0.15 * turn - 0.02 for at, turn in zip(done, (1, 1, 2, 2, 3), strict=True))
        assert server.counts.running == 0


async def test_choices_take_a_slot_each_and_who_leaves_gives_them_back() -> None:
    settings = Settings(port=0, delay_s=60.0, max_num_seqs=4)
    async with running(settings) as server, AsyncExitStack() as stack:
        wide, narrow = [await stack.enter_async_context(Client(server)) for _ in range(2)]
        await wide.send(post(n=4))
        await until(lambda: server.counts.running == 1)
        await narrow.send(post())
        await until(lambda: server.counts.running == 2)
        queued = '"queued":1'
        watcher = await stack.enter_async_context(Client(server))
        assert queued in (await watcher.get("/counts")).body.decode()
        await wide.close()
        await until(lambda: server.counts.aborted == 1)
        assert queued not in (await watcher.get("/counts")).body.decode()


async def test_many_in_line_without_a_delay_are_all_answered() -> None:
    """Each that ends starts the next one: that must not nest."""
    settings = Settings(port=0, max_num_seqs=1, barrier=0)
    async with running(settings) as server, AsyncExitStack() as stack:
        clients = await asked(server, stack, 300)
        server.command("release")
        for client in clients:
            assert (await client.receive()).status == 200


async def test_jitter_stays_within_its_share_and_varies() -> None:
    async with (
        running(Settings(port=0, delay_s=0.1, jitter=0.5)) as server,
        Client(server) as client,
    ):
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(8):
            began = loop.time()
            await client.ask()
            took.append(loop.time() - began)
        assert min(took) >= 0.045
        assert max(took) - min(took) > 0.01
