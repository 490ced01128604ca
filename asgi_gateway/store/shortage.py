"""Since when something finds no room. Pure; time is an argument."""

from typing import Final

# Who finds none so soon after room was made meets the same shortage, and need not wait again.
STILL_S: Final = 1.0
# Nobody was turned away for so long: the next one meets another shortage.
PAUSE_S: Final = 10.0


class Shortage:
    __slots__ = ("_relieved_at", "_seen_at", "_since")

    def __init__(self) -> None:
        self._since = float("inf")
        self._seen_at = self._relieved_at = float("-inf")

    def begins(self, now: float) -> None:
        """Somebody else finds no room."""
        still = now - self._relieved_at < STILL_S
        self._since = float("-inf") if still else now

    def seen(self, now: float) -> None:
        """One of many who ask again and again is turned away."""
        if now - self._seen_at > PAUSE_S:
            self.begins(now)
        self._seen_at = now

    def lasts(self, now: float, for_s: float) -> bool:
        """Whether it has lasted so long; then room is made now."""
        if now - self._since < for_s:
            return False
        self._relieved_at = now
        return True
