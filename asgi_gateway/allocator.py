"""Gives the memory of a burst back to the system.

glibc keeps freed memory wherever something above it in its heap lives on, and after a burst of
131,072 samples that is nearly all of it. `malloc_trim` releases the pages in between. It holds the
heap's lock meanwhile, about 4 ms for 32 MiB, so it is called for as much at a time, in a thread,
and not more than once a second. Elsewhere than on glibc nothing happens.
"""

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

# Freed bytes that are worth a call, while more are held and once next to nothing is.
WORTH_BYTES: Final = 32 << 20
WORTH_AT_REST_BYTES: Final = 4 << 20
AT_REST_BYTES: Final = 1 << 20
EVERY_S: Final = 1.0


def malloc_trim() -> Callable[[int], object] | None:
    """The C library's function, which releases the GIL while it runs; None where it has none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim


class Allocator:
    """Watches how much is held, and has what was freed given back."""

    def __init__(self, trim: Callable[[int], object] | None) -> None:
        self._trim = trim
        self._peak_bytes = 0
        self._trimmed_at = float("-inf")
        self._running: asyncio.Future[object] | None = None
        self.trims = 0

    def __repr__(self) -> str:
        return f"<Allocator {self.trims} trims, peak {self._peak_bytes} bytes>"

    def tick(self, held_bytes: int, now: float) -> bool:
        """Called by the ticker with about what is held; returns whether a trim was started."""
        self._peak_bytes = max(self._peak_bytes, held_bytes)
        freed = self._peak_bytes - held_bytes
        worth = WORTH_AT_REST_BYTES if held_bytes <= AT_REST_BYTES else WORTH_BYTES
        if self._trim is None or freed < worth or now - self._trimmed_at < EVERY_S:
            return False
        if self._running is not None and not self._running.done():
            return False
        self._peak_bytes, self._trimmed_at = held_bytes, now
        self._running = asyncio.get_running_loop().run_in_executor(None, self._trim, 0)
        self.trims += 1
        return True
