"""A barrier in front of the answers: completions wait until so many are outstanding, or until told.

Shut it holds every completion; open it holds none. It starts shut and opens for good once `size`
completions wait or `POST /release` asks for it; `POST /hold` shuts it again. Nothing here knows
what an answer is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

W = TypeVar("W")


class Barrier(Generic[W]):
    """What waits, in the order of its arrival, and whether anything must."""

    __slots__ = ("_size", "_waiting", "shut")

    def __init__(self, size: int) -> None:
        """size: how many outstanding completions open it; 0 for none, it waits to be told."""
        self._size = size
        self._waiting: dict[W, None] = {}
        self.shut = True

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<Barrier {'shut' if self.shut else 'open'}, {len(self)} waiting>"

    def hold(self, waiter: W) -> Iterable[W]:
        """Take one in; returns who may go on: nobody, or all where this was the last one awaited.

        Only where the barrier is shut.
        """
        self._waiting[waiter] = None
        if self._size and len(self._waiting) >= self._size:
            return self.release()
        return ()

    def leave(self, waiter: W) -> None:
        """Forget one whose client has left; nothing happens where it does not wait."""
        self._waiting.pop(waiter, None)

    def release(self) -> Iterator[W]:
        """Open; returns everyone who waited."""
        self.shut = False
        waiting, self._waiting = self._waiting, {}
        return iter(waiting)

    def hold_again(self) -> None:
        """Shut; what is answered already stays so."""
        self.shut = True
