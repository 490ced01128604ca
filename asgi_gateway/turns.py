"""So much work in one turn of the event loop, and no more.

Some requests are about any number of samples: a client may acknowledge 131,072 in one, or finish a
session that has as many. Done at once they would hold the loop for half a second. Whoever works
through such a list does it in slices, and all of them together get one budget a turn.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """Budgets of one event loop, `per_turn` items each."""

    __slots__ = ("_left", "_per_turn", "_waiting")

    def __init__(self, per_turn: int) -> None:
        self._per_turn = per_turn
        self._left = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"<Turns {self._left} of {self._per_turn} left, {len(self._waiting)} waiting>"

    async def slices(self, items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """The items in slices that may each be worked through at once; the first without a pause
        where this turn has some of its budget left."""
        done = 0
        while done < len(items):
            count = await self._granted(len(items) - done)
            yield items[done : done + count]
            done += count

    async def _granted(self, wanted: int) -> int:
        """How many of `wanted` may be done now, at least one; waits for the turn that allows it."""
        loop = asyncio.get_running_loop()
        while self._left == 0:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append(turn)
            await turn
        if self._left == self._per_turn:
            loop.call_soon(self._next_turn)
        granted = min(wanted, self._left)
        self._left -= granted
        return granted

    def _next_turn(self) -> None:
        self._left = self._per_turn
        # All of them: one that was cancelled must not keep the others waiting.
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)


class PerTurn:
    """A budget for callers that cannot wait: `take` as long as it says yes; after it said no,
    `resume` is called in the next turn, with a new one.

    It is renewed in the turn after half of it is gone, so a turn has at least half and at most all
    of it. Renewed after every turn, each sample of a quiet gateway would cost a call of the loop.
    It belongs to the loop of its first use.
    """

    __slots__ = ("_budget", "_half", "_left", "_loop", "_resume")

    def __init__(self, budget: int, resume: Callable[[], None]) -> None:
        self._budget = budget
        self._half = budget // 2
        self._left = budget
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resume = resume

    def take(self, cost: int = 1) -> bool:
        """Whether this turn has room for one more piece of work; the last may be over."""
        before = self._left
        if before <= 0:
            return False
        self._left = left = before - cost
        if left <= self._half < before:
            self._renew_soon()
        return True

    def _renew_soon(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._left = self._budget
        self._resume()
