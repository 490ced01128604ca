"""Says where an event loop is stuck: a thread that prints the loop's stack when it stands still.

Whoever turns the loop calls `came`, one addition. The thread wakes a few times in each limit and
compares; it holds no lock, and a loop that is stuck in C code which keeps the interpreter to itself
keeps this thread from running too.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

from asgi_gateway.metrics import Metrics

# A stall is told after the limit and at most one of these parts later. After the process itself was
# stopped (SIGSTOP, a laptop's lid) only one of them is missed.
PARTS: Final = 5


class Watchdog:
    """Watches the loop of the thread that calls `open`."""

    def __init__(self, limit_s: float, write: Callable[[str], object] | None = None) -> None:
        """limit_s: how long the loop may stand still; 0 watches nothing.

        write: takes the report; standard error where not given.
        """
        self._limit_s = limit_s
        self._write = write
        self._rounds = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.stalls = 0

    def __repr__(self) -> str:
        return f"<Watchdog {self._limit_s:g} s, {self.stalls} stalls>"

    def open(self) -> None:
        """Does nothing where it is open already, or has nothing to watch."""
        if self._limit_s > 0 and self._thread is None:
            watched = threading.get_ident()
            self._thread = threading.Thread(
                target=self._watch, args=(watched,), name="asgi-gateway-watchdog", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def came(self) -> None:
        """The loop came round."""
        self._rounds += 1

    def add_to(self, metrics: Metrics) -> None:
        metrics.counter(
            "loop_stalls_total",
            "Times that the event loop stood still for server.stall_dump_s.",
            lambda: self.stalls,
        )

    def _watch(self, watched: int) -> None:
        seen, still = self._rounds, 0
        while not self._closing.wait(self._limit_s / PARTS):
            if self._rounds != seen:
                seen, still = self._rounds, 0
                continue
            still += 1
            if still == PARTS:
                self.stalls += 1
                self._tell(watched)

    def _tell(self, watched: int) -> None:
        frame = sys._current_frames().get(watched)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        text = f"asgi-gateway: the event loop has stood still for {self._limit_s:g} s in\n{stack}"
        (self._write or sys.stderr.write)(text)
