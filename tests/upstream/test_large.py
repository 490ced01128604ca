"""Large answers come in a few at a time; one that stalls, or is not read, holds up no other."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from asgi_gateway.upstream.exchange import Answer
from asgi_gateway.upstream.large import LARGE_BYTES, LargeBodies, Permit
from asgi_gateway.upstream.pool import Pool
from tests.support.told import Told
from tests.support.upstream import FakeUpstream, Raw, Request, answer, in_order
from tests.support.waiting import until
from tests.upstream.test_pool import pool_of

BODY = b"x" * (16 * LARGE_BYTES)
AT_ONCE = 3


class Connection:
    """One that waits, as the permits see it."""

    def __init__(self) -> None:
        self.heard_at = 0.0
        self.permit: Permit | None = None
        self.closed = False

    def closing(self) -> bool:
        return self.closed

    def go_on(self, permit: Permit) -> None:
        assert self.permit is None
        self.permit = permit


def ask(bodies: LargeBodies, count: int) -> list[Connection]:
    connections = [Connection() for _ in range(count)]
    for connection in connections:
        connection.permit = bodies.permit(connection)
    return connections


def going(connections: list[Connection]) -> list[int]:
    return [n for n, connection in enumerate(connections) if connection.permit is not None]


def test_the_first_come_go_on_and_the_next_with_each_that_is_read() -> None:
    bodies = LargeBodies(2)
    connections = ask(bodies, 5)
    assert going(connections) == [0, 1]
    connections[1].permit = None
    assert going(connections) == [0, 2]
    connections[0].permit = connections[2].permit = None
    assert going(connections) == [3, 4]


def test_one_that_is_gone_is_passed_over() -> None:
    bodies = LargeBodies(1)
    connections = ask(bodies, 3)
    connections[1].closed = True
    connections[0].permit = None
    assert going(connections) == [2]


def test_permits_that_nobody_waits_for_are_there_again() -> None:
    bodies = LargeBodies(2)
    for _ in range(5):
        assert going(ask(bodies, 2)) == [0, 1]


def test_where_nothing_moves_others_go_on_beside() -> None:
    bodies = LargeBodies(2)
    connections = ask(bodies, 7)
    bodies.sweep(10.0)
    assert going(connections) == [0, 1, 2, 3]
    assert [c.heard_at for c in connections[4:]] == [10.0] * 3, "who waits is not silent"
    connections[0].permit = None
    assert going(connections) == [1, 2, 3], "they are over the limit by two"
    bodies.sweep(10.5)
    assert going(connections) == [1, 2, 3], "something moved"
    bodies.sweep(11.0)
    assert going(connections) == [1, 2, 3, 4, 5]


# --- on sockets -----------------------------------------------------------------------------------


class Keeping(Told):
    """Does not let go of its answer."""

    answer: Answer | None = None

    def answered(self, answer: Answer) -> None:
        self.answer = answer
        super().answered(answer)


async def whole_body(_: Request) -> Raw:
    return answer(200, BODY)


@pytest.fixture
async def pool(upstream: FakeUpstream) -> AsyncIterator[Pool]:
    """Its sweeps are the test's."""
    upstream.script = whole_body
    async with pool_of(upstream.url) as pool:
        pool.large = LargeBodies(AT_ONCE)
        pool._sweep_s = 3600.0
        yield pool


def send(pool: Pool, upstream: FakeUpstream, count: int) -> list[Keeping]:
    exchanges = [Keeping() for _ in range(count)]
    for number, exchange in enumerate(exchanges):
        pool.send(exchange, upstream.url, b"{}", request_id=f"r-{number}", affinity=None)
    return exchanges


def whole(exchanges: list[Keeping]) -> list[Keeping]:
    return [exchange for exchange in exchanges if exchange.answer is not None]


async def test_so_many_come_in_until_one_is_read(pool: Pool, upstream: FakeUpstream) -> None:
    exchanges = send(pool, upstream, 3 * AT_ONCE)
    await until(lambda: len(whole(exchanges)) == AT_ONCE)
    await asyncio.sleep(0.1)
    assert len(whole(exchanges)) == AT_ONCE
    for _ in range(2 * AT_ONCE):
        whole(exchanges)[0].answer = None
        await until(lambda: len(whole(exchanges)) == AT_ONCE)
    assert all(e.story[-1] == (200, BODY, None) for e in exchanges)


async def test_small_answers_pass_by_those_that_wait(pool: Pool, upstream: FakeUpstream) -> None:
    large = send(pool, upstream, 2 * AT_ONCE)
    await until(lambda: len(whole(large)) == AT_ONCE)
    upstream.script = in_order(answer(200, b"{}"))
    (small,) = send(pool, upstream, 1)
    assert await small.outcome() == (200, b"{}", None)


async def test_answers_that_stall_hold_up_no_other(pool: Pool, upstream: FakeUpstream) -> None:
    async def stalls(request: Request) -> Raw:
        await request.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY))
        await request.write(BODY[: 2 * LARGE_BYTES])
        await asyncio.sleep(60)
        return Raw(b"", "close")

    upstream.script = stalls
    stalled = send(pool, upstream, AT_ONCE)
    await until(lambda: pool.large._free == 0)
    upstream.script = whole_body
    others = send(pool, upstream, 2 * AT_ONCE)
    await until(lambda: len(pool.large._waiting) == 2 * AT_ONCE)
    assert whole(others) == []
    pool._sweep()
    await until(lambda: len(whole(others)) == AT_ONCE)
    assert whole(stalled) == []


async def test_one_that_is_aborted_makes_room(pool: Pool, upstream: FakeUpstream) -> None:
    exchanges = send(pool, upstream, 2 * AT_ONCE)
    await until(lambda: len(whole(exchanges)) == len(pool.large._waiting) == AT_ONCE)
    waiting = [exchange for exchange in exchanges if exchange.answer is None]
    pool.abort(waiting[0])
    read = whole(exchanges)
    for exchange in read:
        exchange.answer = None
    await until(lambda: all(exchange.answer is not None for exchange in waiting[1:]))
    assert waiting[0].answer is None
