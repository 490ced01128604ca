"""Slots for generations, and a line in front of them, as vLLM's scheduler has it.

First come, first served: a request that needs more slots than are free waits, and so does all
behind it. One that needs more than there are gets all of them.
"""

from __future__ import annotations

from typing import Generic, TypeVar

W = TypeVar("W")


class Scheduler(Generic[W]):
    """Who generates and who waits, each with the slots it takes (one per choice)."""

    __slots__ = ("_free", "_running", "_slots", "_waiting")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._free = slots
        self._running: dict[W, int] = {}
        self._waiting: dict[W, int] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<Scheduler {self._free} of {self._slots} free, {len(self)} waiting>"

    def enter(self, waiter: W, slots: int) -> bool:
        """Whether it may start at once; it waits in line otherwise."""
        needed = min(slots, self._slots)
        if self._waiting or needed > self._free:
            self._waiting[waiter] = needed
            return False
        self._free -= needed
        self._running[waiter] = needed
        return True

    def leave(self, waiter: W) -> list[W]:
        """Give up a place, running or in line; returns who starts now. Strangers are no error."""
        if self._waiting.pop(waiter, None) is None:
            self._free += self._running.pop(waiter, 0)
        started = []
        for following, needed in self._waiting.items():
            if needed > self._free:
                break
            self._free -= needed
            self._running[following] = needed
            started.append(following)
        for following in started:
            del self._waiting[following]
        return started
