"""Two counts over the last ten seconds. Pure; time is an argument."""

from collections import deque
from typing import Final

WINDOW_S: Final = 10.0
_STEP_S: Final = 1.0


class Window:
    """first, second: counts since the start, which whoever counts adds to: that costs a sample no
    call. Their recent part is what came since a mark, and marks are set by time, once a second."""

    __slots__ = ("_marks", "first", "second")

    def __init__(self) -> None:
        self.first = self.second = 0
        self._marks: deque[tuple[float, int, int]] = deque([(float("-inf"), 0, 0)])

    def tick(self, now: float) -> None:
        """Called often enough, each time the second is over."""
        if now - self._marks[-1][0] >= _STEP_S:
            self._marks.append((now, self.first, self.second))
        # The last of those that are old enough is where the window begins.
        while len(self._marks) > 1 and self._marks[1][0] <= now - WINDOW_S:
            self._marks.popleft()

    def recent(self, now: float) -> tuple[int, int]:
        """What was counted within the last ten to eleven seconds."""
        self.tick(now)
        _, first, second = self._marks[0]
        return self.first - first, self.second - second

    def clear(self) -> None:
        """Begin anew."""
        self._marks.clear()
        self._marks.append((float("-inf"), self.first, self.second))
