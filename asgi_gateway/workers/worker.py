"""A worker as its supervisor sees it: a process, what was said, when it began and how it ended."""

import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from asgi_gateway.workers.told import Told

_READ_BYTES: Final = 4096


class Worker:
    """A process that was started."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        listener: socket.socket,
        now: float,
        *,
        slot: int,
        serial: int,
        count: int,
        folder: str,
    ) -> None:
        """Raises OSError: there can be none now."""
        self.slot = slot
        self.serial = serial
        self.started_at = now
        self.accepts = False
        # To end, by us.
        self.told = False
        # It says nothing any more: it is ending.
        self.silent = False
        self.status: int | None = None
        self._heard = b""
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        with theirs:
            told = Told(slot, serial, count, listener.fileno(), theirs.fileno(), folder)
            try:
                self._process = subprocess.Popen(
                    [*command, *told.flags()],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    # All other descriptors, the ends of the other workers among them, are closed.
                    pass_fds=(listener.fileno(), theirs.fileno()),
                )
            except BaseException:
                self.control.close()
                raise

    def __repr__(self) -> str:
        return f"<Worker {self.slot}, process {self.pid}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # it is ending
            self.control.send(word + b"\n")

    def end(self, word: bytes) -> None:
        """Tell it to end, by `word` where it listens already."""
        self.told = True
        self.tell(word)
        if not self.accepts:
            self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def words(self) -> Iterator[bytes]:
        """What it said; a last half line is nothing."""
        try:
            while more := self.control.recv(_READ_BYTES):
                *words, self._heard = (self._heard + more).split(b"\n")
                yield from words
        except BlockingIOError:
            return
        except OSError:
            pass
        self.silent = True

    def ended(self) -> bool:
        """Whether it is gone; `status` says how then."""
        if self.status is None:
            self.status = self._process.poll()
        return self.status is not None

    @property
    def clean(self) -> bool:
        """One that was ended before it had a handler for that counts too."""
        return self.status == 0 or (
            self.told and not self.accepts and self.status == -signal.SIGTERM
        )

    def how(self) -> str:
        """The end of it in words."""
        if self.status is not None and self.status < 0:
            return f"signal {signal.Signals(-self.status).name}"
        return f"status {self.status}"


class Seat:
    """One of the places that are to be taken: by a worker, or by the next one soon."""

    # Who lived so long did not die of its start.
    STEADY_S: Final = 10.0
    FIRST_DELAY_S: Final = 0.5
    MOST_DELAY_S: Final = 30.0

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.worker: Worker | None = None
        # When the next one is to be started.
        self.due_at: float | None = None
        self._quick = 0

    def __repr__(self) -> str:
        return f"<Seat {self.worker or self.due_at}>"

    def taken(self, worker: Worker) -> None:
        self.worker, self.slot, self.due_at = worker, worker.slot, None

    def died(self, lived_s: float, now: float) -> float:
        """Its worker is gone; returns the delay before the next one."""
        self.worker = None
        self._quick = 0 if lived_s >= self.STEADY_S else self._quick + 1
        delay_s = 0.0
        if self._quick > 1:
            # A power that is too large for a float is not reached.
            grown_s = self.FIRST_DELAY_S * 2.0 ** min(self._quick - 2, 16)
            delay_s = min(self.MOST_DELAY_S, grown_s)
        self.due_at = now + delay_s
        return delay_s
