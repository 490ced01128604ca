"""Slices of work: counted by turns of the loop, not by a clock."""

import asyncio
from collections import Counter

import pytest

from asgi_gateway.turns import Turns


class Loop:
    """Counts the turns of the running loop; a turn begins when its call_soon comes round."""

    def __init__(self) -> None:
        self.turn = 0
        self._tick()

    def _tick(self) -> None:
        self.turn += 1
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> None:
        self._handle.cancel()


async def worked(turns: Turns, items: range, loop: Loop, done: "Counter[int]") -> list[int]:
    out: list[int] = []
    async for some in turns.slices(items):
        done[loop.turn] += len(some)
        out.extend(some)
    return out


async def test_all_is_done_in_order_and_within_one_budget_a_turn() -> None:
    turns, loop, done = Turns(10), Loop(), Counter[int]()
    lists = [range(start, start + 37) for start in (0, 100, 200)]
    outs = await asyncio.gather(*(worked(turns, items, loop, done) for items in lists))
    loop.stop()
    assert outs == [list(items) for items in lists]
    assert max(done.values()) <= 10
    assert done.total() == 3 * 37
    assert len(done) <= 15, "and it does not dawdle"


async def test_what_fits_takes_no_turn() -> None:
    turns = Turns(10)
    work = turns.slices(range(10))
    with pytest.raises(StopIteration) as first:
        anext(work).__await__().send(None)
    assert list(first.value.value) == list(range(10))


async def test_nothing_to_do_is_done_at_once() -> None:
    nothing: list[int] = []
    assert [some async for some in Turns(10).slices(nothing)] == []


async def test_one_that_is_cancelled_keeps_nobody_waiting() -> None:
    turns, loop, done = Turns(4), Loop(), Counter[int]()
    tasks = [
        asyncio.ensure_future(worked(turns, range(n * 100, n * 100 + 20), loop, done))
        for n in range(3)
    ]
    await asyncio.sleep(0)
    tasks[1].cancel()
    first, cancelled, last = await asyncio.gather(*tasks, return_exceptions=True)
    loop.stop()
    assert (first, last) == (list(range(20)), list(range(200, 220)))
    assert isinstance(cancelled, asyncio.CancelledError)
    assert max(done.values()) <= 4
