"""How long to wait before the next try: exponential, with full jitter."""

from collections.abc import Callable
from typing import Final

FIRST_S: Final = 0.05
# Short, for a failover takes seconds, and a try costs one connect.
MOST_S: Final = 2.0


class Backoff:
    """random: from 0 to 1, so that many gateways do not come back at once."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._ceiling_s = FIRST_S

    def __repr__(self) -> str:
        return f"<Backoff of up to {self._ceiling_s:g} s>"

    def reset(self) -> None:
        self._ceiling_s = FIRST_S

    def next_s(self) -> float:
        ceiling_s = self._ceiling_s
        self._ceiling_s = min(2 * ceiling_s, MOST_S)
        return ceiling_s * self._random()
