"""Two counts over the last ten seconds. Pure; time is an argument."""

from collections import deque
from typing import Final

WINDOW_S: Final = 10


class Window:
    """Counted in steps of one second, so what is counted is between nine and ten seconds old."""

    __slots__ = ("_current", "_ends_at", "_past")

    def __init__(self) -> None:
        self._past: deque[tuple[float, list[int]]] = deque()
        self._current = [0, 0]
        self._ends_at = float("-inf")

    def at(self, now: float) -> list[int]:
        """The two counts of this second, to be added to."""
        if now >= self._ends_at:
            if any(self._current):
                self._past.append((self._ends_at, self._current))
                self._current = [0, 0]
            self._ends_at = now + 1.0
        return self._current

    def totals(self, now: float) -> tuple[int, int]:
        first, second = self.at(now)
        while self._past and self._past[0][0] <= self._ends_at - WINDOW_S:
            self._past.popleft()
        for _, counts in self._past:
            first += counts[0]
            second += counts[1]
        return first, second

    def clear(self) -> None:
        self._past.clear()
        self._current = [0, 0]
