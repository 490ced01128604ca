"""A budget of work for one turn of the event loop, so that nobody waits behind a burst."""

import asyncio
from collections.abc import Callable


class Turn:
    """`take` as long as it says yes; `resume` is called in the next turn, with a new budget."""

    __slots__ = ("_budget", "_left", "_resume")

    def __init__(self, budget: int, resume: Callable[[], None]) -> None:
        self._budget = budget
        self._left = budget
        self._resume = resume

    def take(self) -> bool:
        """Whether this turn has room for one more piece of work."""
        if self._left == self._budget:
            asyncio.get_running_loop().call_soon(self._next)
        elif not self._left:
            return False
        self._left -= 1
        return True

    def _next(self) -> None:
        self._left = self._budget
        self._resume()
