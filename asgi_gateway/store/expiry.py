"""First-in-first-out deadlines of one constant lifetime. Pure.

With one lifetime for all, deadlines come due in the order they were started, so an ordered dict is
the whole structure: start, stop and expire are O(1), and a stopped entry leaves nothing behind.
(A deque with lazy deletion keeps every finished sample alive until its old deadline comes: at
4,000 samples/s and a work clock of 2,048 s that is eight million of them.)
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Keys with a running clock; all clocks last `lifetime_s` seconds."""

    __slots__ = ("_due_at", "lifetime_s")

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self._due_at: OrderedDict[K, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due_at)

    def __contains__(self, key: K) -> bool:
        return key in self._due_at

    def __repr__(self) -> str:
        return f"<Deadlines {self.lifetime_s:g} s, {len(self)} running>"

    def start(self, key: K, now: float) -> None:
        """Start the clock of `key`, or start it anew where it runs already."""
        self._due_at[key] = now + self.lifetime_s
        self._due_at.move_to_end(key)

    def stop(self, key: K) -> None:
        """Stop the clock of `key`; nothing happens where none runs."""
        self._due_at.pop(key, None)

    def oldest(self) -> K | None:
        """The key whose deadline comes first."""
        return next(iter(self._due_at), None)

    def due(self, now: float, budget: int) -> list[K]:
        """Take out and return at most `budget` keys whose deadline is not after `now`."""
        taken: list[K] = []
        while len(taken) < budget and self._due_at:
            key, due_at = next(iter(self._due_at.items()))
            if due_at > now:
                break
            del self._due_at[key]
            taken.append(key)
        return taken
