"""The client behind a request: what its poll sleeps on, and whether it is still there."""

import asyncio
import inspect
import types
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from asgi_gateway.asgi import Message, Receive

# A server that keeps handing out messages which mean nothing to us is taken as "cannot tell".
_MAX_IDLE_MESSAGES: Final = 8


class Telling(Protocol):
    """Says by itself whether its client has gone, as uvicorn's request cycle does."""

    disconnected: bool


class Waker:
    """What a parked poll sleeps on; anything that ends the poll wakes it, once is enough.

    telling: what is to be looked at while the poll sleeps, where its client's leaving wakes nobody.
    """

    __slots__ = ("future", "telling")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """loop: the running one, if it is at hand; asking for it is a system call in 3.11."""
        self.future: asyncio.Future[None] = (loop or asyncio.get_running_loop()).create_future()
        self.telling: Telling | None = None

    @property
    def woken(self) -> bool:
        return self.future.done()

    def client_left(self) -> bool:
        """Whether its client is told to have left; False where that wakes it anyway."""
        return self.telling is not None and self.telling.disconnected

    def wake(self, _: object = None) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Peer:
    """The client behind one request, as far as ASGI lets it be seen.

    Sending to a client that has gone raises nowhere, so whether an answer was delivered must be
    decided before it is sent. The one sign is `http.disconnect` from `receive()`, which uvicorn
    gives as often as it is asked (also after every complete answer), hypercorn once only, and
    granian through a future of its own. So one `receive()` is kept pending and driven by hand in
    the handler's own task: a task per parked poll would cost 38% CPU and 1.7 KiB more.

    Where `receive` belongs to an object that tells by itself, that is asked instead, and parked
    polls are looked through now and then: a pending `receive()` of uvicorn's takes as many
    instructions as all the rest of parking and waking.
    """

    __slots__ = ("_coroutine", "_future", "_receive", "_telling", "_unsure", "gone")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._telling = telling(receive)
        self._coroutine: Coroutine[Any, Any, Message] | None = None
        self._future: Any = None
        self._unsure = False
        self.gone = False

    def seen_open(self) -> bool:
        """Whether the client is there now. In doubt it is not, and its result is kept longer."""
        if self._telling is not None:
            self.gone = self._telling.disconnected
            return not self.gone
        asked = self.gone or self._unsure or self._future is not None
        if not asked and isinstance(self._receive, types.BuiltinMethodType):
            return True  # granian, not parked: its future never tells at once, so take it as open
        self._look()
        return not self.gone and not self._unsure

    def watch(self, waker: Waker) -> None:
        """Have `waker` woken when the client hangs up, or at once if it already has."""
        if self._telling is not None:
            waker.telling = self._telling
            if self._telling.disconnected:
                waker.wake()
            return
        self._look()
        if self.gone:
            waker.wake()
        elif self._future is not None:
            self._future.add_done_callback(waker.wake)

    def close(self) -> None:
        """Let go of the pending receive()."""
        coroutine, future = self._coroutine, self._future
        self._coroutine = self._future = None
        if coroutine is not None:
            # A foreign receive() may await or fail while it is closed; the answer goes out anyway.
            try:  # noqa: SIM105 - suppress() costs as much as the rest of this
                coroutine.close()
            except Exception:  # noqa: BLE001
                pass
        elif future is not None:
            future.cancel()

    def _look(self) -> None:
        """Advance the pending receive() until it waits, or the client is known to be gone."""
        for _ in range(_MAX_IDLE_MESSAGES):
            if self.gone or self._unsure:
                return
            if self._future is not None and not self._future.done():
                return
            try:
                message = self._next()
            except Exception:  # noqa: BLE001 - a server's own error: the client cannot be seen
                self._coroutine = self._future = None
                self._unsure = True
                return
            if message is None:
                continue
            self._future = None
            if message["type"] == "http.disconnect":
                self.gone = True
        else:
            self._unsure = self._future is None or self._future.done()

    def _next(self) -> Message | None:
        """One step: a message, or None when the receive() went on waiting."""
        if self._coroutine is None:
            if self._future is not None:  # granian's own future, done
                return self._future.result()  # type: ignore[no-any-return]
            awaitable = self._receive()
            if not inspect.iscoroutine(awaitable):
                if not hasattr(awaitable, "add_done_callback"):
                    raise TypeError("receive() gave neither a coroutine nor a future")
                self._future = awaitable
                return None
            self._coroutine = awaitable
        try:
            future = self._coroutine.send(None)
        except StopIteration as stop:
            self._coroutine = None
            return stop.value  # type: ignore[no-any-return]
        # What Task does with a yielded future; anything else cannot be waited on here.
        future._asyncio_future_blocking = False
        self._future = future
        return None


def telling(given: object) -> Telling | None:
    """The server's object behind a `receive` or a `send`, where it tells by itself."""
    try:
        told = given.__self__.disconnected  # type: ignore[attr-defined]
    except AttributeError:
        return None
    return given.__self__ if told is False or told is True else None  # type: ignore[attr-defined]
