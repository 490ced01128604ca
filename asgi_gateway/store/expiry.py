"""First-in-first-out deadlines of one constant lifetime. Pure.

With one lifetime for all, deadlines come due in the order they were started, so a dict from key to
start is the whole structure: a start is put at the end, and what is due is at the front. It is a
third the size of an ordered dict (40 bytes an entry against 136), and the start is a float that
its caller keeps anyway. (A deque with lazy deletion keeps every finished sample alive until its old
deadline comes: at 4,000 samples/s and a work clock of 2,048 s that is eight million of them.)

A dict keeps the places of what was taken out until it is rebuilt, and whoever looks at its front
walks over them. So it is rebuilt here once most places are empty: each operation costs O(1) over
time, a look at the front at most a walk over 2 places per running clock and SPARE_PLACES more, and
the memory of a burst is given back.
"""

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SPARE_PLACES: Final = 1024


class Deadlines(Generic[K]):
    """Keys with a running clock; all clocks last `lifetime_s` seconds."""

    __slots__ = ("_empty_places", "_started_at", "lifetime_s")

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self._started_at: dict[K, float] = {}
        self._empty_places = 0

    def __len__(self) -> int:
        return len(self._started_at)

    def __contains__(self, key: K) -> bool:
        return key in self._started_at

    def __repr__(self) -> str:
        return f"<Deadlines {self.lifetime_s:g} s, {len(self)} running>"

    def __iter__(self) -> Iterator[tuple[K, float]]:
        """Keys and when they are due, the first due first."""
        for key, started_at in self._started_at.items():
            yield key, started_at + self.lifetime_s

    def start(self, key: K, now: float) -> None:
        """Start the clock of `key`, or start it anew where it runs already."""
        started_at = self._started_at
        if key in started_at:
            del started_at[key]
            self._empty_places += 1
            if self._empty_places > 2 * len(started_at) + SPARE_PLACES:
                self._rebuild()
                started_at = self._started_at
        started_at[key] = now

    def stop(self, key: K) -> bool:
        """Stop the clock of `key`; returns whether it ran."""
        if self._started_at.pop(key, None) is None:
            return False
        self._empty_places += 1
        if self._empty_places > 2 * len(self._started_at) + SPARE_PLACES:
            self._rebuild()
        return True

    def oldest(self, count: int) -> list[K]:
        """The keys whose deadlines come first, at most `count`."""
        return list(islice(self._started_at, count))

    def due(self, now: float, budget: int) -> list[K]:
        """Take out and return at most `budget` keys whose deadline is not after `now`."""
        taken: list[K] = []
        for key, started_at in islice(self._started_at.items(), budget):
            if started_at + self.lifetime_s > now:
                break
            taken.append(key)
        for key in taken:
            del self._started_at[key]
        self._empty_places += len(taken)
        if self._empty_places > 2 * len(self._started_at) + SPARE_PLACES:
            self._rebuild()
        return taken

    def _rebuild(self) -> None:
        self._started_at = dict(self._started_at)
        self._empty_places = 0
