"""The barrier: nothing is answered before it opens, everything once it has."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from loadgen.barrier import Barrier
from loadgen.settings import Settings
from loadgen.upstream import Upstream, running
from tests.loadgen.test_main import failure
from tests.loadgen.test_upstream import Answer, Client, post, until


def test_a_barrier_holds_until_the_last_one_comes_and_then_none() -> None:
    barrier: Barrier[str] = Barrier(3)
    assert list(barrier.hold("a")) == []
    assert list(barrier.hold("b")) == []
    assert (len(barrier), barrier.shut) == (2, True)
    assert list(barrier.hold("c")) == ["a", "b", "c"]
    assert (len(barrier), barrier.shut) == (0, False)


def test_who_leaves_is_not_counted_and_not_let_go() -> None:
    barrier: Barrier[str] = Barrier(2)
    barrier.hold("a")
    barrier.leave("a")
    barrier.leave("never there")
    assert list(barrier.hold("b")) == []
    assert list(barrier.hold("c")) == ["b", "c"]


def test_without_a_size_only_release_opens() -> None:
    barrier: Barrier[int] = Barrier(0)
    assert [list(barrier.hold(i)) for i in range(100)] == [[]] * 100
    assert list(barrier.release()) == list(range(100))
    barrier.hold_again()
    assert (list(barrier.hold(1)), repr(barrier)) == ([], "<Barrier shut, 1 waiting>")


async def control(server: Upstream, path: str) -> Answer:
    async with Client(server) as client:
        await client.send(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        return await client.receive()


async def asked(server: Upstream, stack: AsyncExitStack, count: int) -> list[Client]:
    """So many clients with a completion outstanding each."""
    clients = [await stack.enter_async_context(Client(server)) for _ in range(count)]
    before = server.counts.running
    for client in clients:
        await client.send(post())
    await until(lambda: server.counts.running == before + count)
    return clients


async def silent(client: Client) -> bool:
    try:
        async with asyncio.timeout(0.05):
            await client.reader.read(1)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("delay_s", [0.0, 0.01])
async def test_k_outstanding_open_it_for_all(delay_s: float) -> None:
    async with (
        running(Settings(port=0, barrier=3, delay_s=delay_s)) as server,
        AsyncExitStack() as stack,
    ):
        early = await asked(server, stack, 2)
        assert await silent(early[0])
        late = await stack.enter_async_context(Client(server))
        assert (await late.ask()).status == 200
        assert [(await client.receive()).status for client in early] == [200, 200]
        assert (await late.ask()).status == 200
        assert server.counts.running == 0


async def test_release_and_hold_on_request() -> None:
    async with running(Settings(port=0, barrier=0)) as server, AsyncExitStack() as stack:
        for _ in range(2):
            clients = await asked(server, stack, 5)
            assert await silent(clients[4])
            assert (await control(server, "/release")).status == 200
            assert [(await client.receive()).status for client in clients] == [200] * 5
            assert (await clients[0].ask()).status == 200
            assert (await control(server, "/hold")).status == 200
        assert server.counts.statuses == {200: 12}


async def test_who_leaves_while_held_is_aborted() -> None:
    async with running(Settings(port=0, barrier=2)) as server, AsyncExitStack() as stack:
        (leaving,) = await asked(server, stack, 1)
        await leaving.close()
        await until(lambda: server.counts.aborted == 1)
        (staying,) = await asked(server, stack, 1)
        assert await silent(staying)
        assert (await control(server, "/release")).status == 200
        assert (await staying.receive()).status == 200
        assert (server.counts.running, server.counts.aborted) == (0, 1)


async def test_without_a_barrier_there_are_no_such_routes() -> None:
    async with running(Settings(port=0)) as server:
        assert (await control(server, "/release")).status == 404
        assert (await control(server, "/hold")).status == 404


def test_the_size_is_a_whole_number() -> None:
    assert "--barrier" in failure("upstream", "--barrier", "0")
