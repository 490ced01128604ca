"""Slices of work: counted by turns of the loop, not by a clock."""

import asyncio
from collections import Counter

import pytest

from asgi_gateway.turns import PerTurn, Turns


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


# --- for callers that cannot wait -----------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 2, 5, 10])
async def test_a_turn_gets_its_budget_and_the_next_goes_on(budget: int) -> None:
    resumed: list[int] = []
    turn = PerTurn(budget, lambda: resumed.append(budget))
    assert [turn.take() for _ in range(budget + 2)] == [True] * budget + [False] * 2
    assert resumed == []
    await asyncio.sleep(0)
    assert resumed == [budget], "in the next turn, and once"
    assert [turn.take() for _ in range(budget + 1)] == [True] * budget + [False]


async def test_no_turn_gets_more_than_its_budget_or_less_than_half() -> None:
    turn, pattern = PerTurn(10, lambda: None), [1, 3, 2, 20, 0, 4, 4, 4, 20, 5, 1, 20, 20]
    for wanted in pattern:
        given = sum(turn.take() for _ in range(wanted))
        assert min(wanted, 5) <= given <= 10
        await asyncio.sleep(0)


async def test_a_quiet_gateway_is_not_called_back_in_each_turn() -> None:
    renewed = 0

    def renew() -> None:
        nonlocal renewed
        renewed += 1

    turn = PerTurn(32, renew)
    for _ in range(320):
        assert turn.take()
        await asyncio.sleep(0)
    assert renewed == 20


async def test_a_piece_that_costs_more_than_the_budget_is_done_and_is_the_last() -> None:
    turn = PerTurn(4, lambda: None)
    assert turn.take(100)
    assert not turn.take()
    await asyncio.sleep(0)
    assert turn.take()
