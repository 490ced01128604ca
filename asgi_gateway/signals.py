"""Our part of SIGTERM and SIGINT, in front of what a server does at them.

A server that has a Python handler (uvicorn) gets its signal when the drain is over: until then it
serves on. One that lets its event loop watch signals (hypercorn in one process, granian, gunicorn's
workers) hears of them from the kernel in the same moment as we do and stops listening at once; then
all that is left to do is to answer parked polls now. Where there is no handler at all, as in
hypercorn's workers, whose supervisor stops them by other means, polls are answered too, and if the
process is still there after a while the signal ends it.
"""

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)
# How long a signal that nobody else handles is put off, for the answers to go out.
WITHOUT_HANDLER_S: Final = 10.0
# Where the placeholders come from that event loops install: the signal itself goes to the loop
# through its wake-up descriptor, whatever handler stands here.
_OF_LOOPS: Final = frozenset({"asyncio.unix_events", "uvloop.loop"})


class Chain:
    """Handlers of this process, from `install` to `restore`; both in the main thread.

    drain: begins at the first call and comes to its end at the second, calling what it is given.
    let_go: answers parked polls at once.
    """

    def __init__(
        self, drain: Callable[[Callable[[], None]], None], let_go: Callable[[], None]
    ) -> None:
        self._drain = drain
        self._let_go = let_go
        self._before: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Chain {sorted(self._before)}>"

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Does nothing outside the main thread. What is ignored stays so."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._loop = loop
        for number in NUMBERS:
            before = signal.getsignal(number)
            if before is None or before is signal.SIG_IGN:
                continue  # None: set by something that is not Python
            self._before[number] = before
            _set(number, self._handle)

    def restore(self) -> None:
        """What stood there before, unless somebody has put another handler in our place."""
        for number in list(self._before):
            self._give_back(number)

    def _give_back(self, number: int) -> Any:
        before = self._before.pop(number)
        if signal.getsignal(number) == self._handle:
            _set(number, before)
        return before

    def _handle(self, number: int, _: FrameType | None) -> None:
        before = self._before.get(number)
        assert self._loop is not None
        if self._loop.is_closed():
            self._pass_on(number)
        elif before is signal.SIG_DFL:
            self._loop.call_soon_threadsafe(self._let_go)
            self._loop.call_soon_threadsafe(
                self._loop.call_later, WITHOUT_HANDLER_S, self._pass_on, number
            )
        elif getattr(before, "__module__", None) in _OF_LOOPS:
            self._loop.call_soon_threadsafe(self._let_go)
        else:
            self._loop.call_soon_threadsafe(self._drain, lambda: self._pass_on(number))

    def _pass_on(self, number: int) -> None:
        """Let the signal do what it does without us."""
        if number not in self._before:
            return
        before = self._give_back(number)
        if callable(before):
            before(number, None)
        else:
            signal.raise_signal(number)


def _set(number: int, handler: Any) -> None:
    signal.signal(number, handler)
    # As event loops have it: a system call that a signal meets is taken up again.
    signal.siginterrupt(number, False)
