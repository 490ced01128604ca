"""How many bytes of the journal are still worth something. Pure."""

from typing import Final

from asgi_gateway.state.events import Accepted, Closed, Event, SessionFinished, SessionForgotten

# Compact even where nothing is dead by our estimate, once the files outgrew what was known to be
# live: the estimate counts sessions for ever, and trusts the owner to close every sample.
_GROWN_BYTES: Final = 32 * 2**20
_GROWN_FACTOR: Final = 4


class Tally:
    """Bytes in the files, and an estimate of the live ones among them.

    `Closed` does not say how long the record was that it closes, and a table that knew would be a
    second copy of the ids. The mean of the open ones is used instead; each compaction counts anew.
    """

    __slots__ = ("_known_live", "_open_bytes", "_open_count", "_other_bytes", "total_bytes")

    def __init__(self, total_bytes: int = 0) -> None:
        self.total_bytes = total_bytes
        self._open_bytes = 0.0
        self._open_count = 0
        self._other_bytes = 0
        self._known_live = 0.0

    def __repr__(self) -> str:
        return f"<Tally {self.total_bytes} bytes, about {self.live_bytes:.0f} live>"

    def add(self, event: Event, nbytes: int) -> None:
        """A record of `nbytes`, frame included, was appended."""
        self.total_bytes += nbytes
        if type(event) is Closed:
            if self._open_count:
                self._open_bytes -= self._open_bytes / self._open_count
                self._open_count -= 1
        else:
            self.count_live(event, nbytes)

    def count_live(self, event: Event, nbytes: int) -> None:
        """Count a record's bytes as live, and not in the total."""
        if type(event) is Accepted:
            self._open_count += 1
            self._open_bytes += nbytes
        elif type(event) is not SessionFinished and type(event) is not SessionForgotten:
            self._other_bytes += nbytes

    def settle(self, open_count: int | None = None) -> None:
        """What is counted as live is known to be so; `open_count` corrects the open samples."""
        if open_count is not None:
            mean = self._open_bytes / self._open_count if self._open_count else 0.0
            self._open_count = open_count
            self._open_bytes = mean * open_count
        self._known_live = self.live_bytes

    @property
    def live_bytes(self) -> float:
        return self._open_bytes + self._other_bytes

    def due(self, min_dead_bytes: int) -> bool:
        """Whether it is time to copy what is live."""
        live = self._open_bytes + self._other_bytes
        return self.total_bytes - live > max(min_dead_bytes, live) or self.total_bytes > max(
            _GROWN_BYTES, _GROWN_FACTOR * self._known_live
        )
