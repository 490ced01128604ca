"""How many large answers come in at once. The others wait in their sockets, not in our memory.

Engines that run in step finish hundreds of long samples together; read side by side, all their
bodies would be held at once, and every turn of the event loop would read a piece of each.
"""

from collections import deque
from typing import Final, Protocol

LARGE_BYTES: Final = 128 << 10
AT_ONCE: Final = 16


class Permit:
    """Held from where an answer grows large until whoever reads it lets go of it."""

    __slots__ = ("_bodies",)

    def __init__(self, bodies: "LargeBodies") -> None:
        self._bodies = bodies

    # However its answer ends: read, failed, aborted.
    def __del__(self) -> None:
        self._bodies.returned()


class Waiting(Protocol):
    """A connection that has paused in the middle of a large answer."""

    heard_at: float

    def closing(self) -> bool:
        """Whether it does not wait any more."""

    def go_on(self, permit: Permit) -> None:
        """Read the rest."""


class LargeBodies:
    """Permits, and who waits for one; first come, first served."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._free = at_once
        self._waiting: deque[Waiting] = deque()
        self._moved = False

    def __repr__(self) -> str:
        return f"<LargeBodies {self._free} of {self._at_once} free, {len(self._waiting)} waiting>"

    def permit(self, connection: Waiting) -> Permit | None:
        """One for a connection whose answer has grown large; None where it has to wait."""
        if self._free > 0:
            self._free -= 1
            return Permit(self)
        self._waiting.append(connection)
        return None

    def returned(self) -> None:
        self._free += 1
        self._moved = True
        if self._waiting and self._free > 0:
            self._let_on(1)

    def sweep(self, now: float) -> None:
        """Called twice a second. Who waits is not silent; and where no answer was read since the
        last time, as many go on beside those that do not: an upstream that stalls in the middle of
        its answers holds up nobody else."""
        if self._waiting and not self._moved:
            self._let_on(self._at_once)
        self._moved = False
        for connection in self._waiting:
            connection.heard_at = now

    def _let_on(self, count: int) -> None:
        while count > 0 and self._waiting:
            connection = self._waiting.popleft()
            if not connection.closing():
                count -= 1
                self._free -= 1
                connection.go_on(Permit(self))
