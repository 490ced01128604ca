"""`receive()` as the servers make it, each with the habits that its source and a probe showed.

All give one whole request and then wait for the client to hang up; they differ in how they wait,
and in what they say when asked again.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from asgi_gateway.asgi import Message, Receive

DISCONNECT: Message = {"type": "http.disconnect"}


class UvicornReceive:
    """A coroutine that waits on an Event; says disconnect as often as it is asked.

    It shows nothing else, as where a middleware stands between uvicorn and us.
    """

    def __init__(self, body: bytes = b"{}") -> None:
        self._messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._event = asyncio.Event()
        self._gone = False
        self.waiting = 0

    async def __call__(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        if not self._gone:
            self.waiting += 1
            try:
                await self._event.wait()
            finally:
                self.waiting -= 1
            self._event.clear()
        return DISCONNECT

    def hang_up(self) -> None:
        self._gone = True
        self._event.set()


class UvicornCycle(UvicornReceive):
    """Its `receive` is the method of an object that also tells whether the client has left."""

    @property
    def disconnected(self) -> bool:
        return self._gone

    async def receive(self) -> Message:
        return await self()


class HypercornReceive:
    """`asyncio.Queue.get`: says disconnect once, and ends a body with an empty message."""

    def __init__(self, body: bytes = b"{}") -> None:
        self.queue: asyncio.Queue[Message] = asyncio.Queue(10)
        self.queue.put_nowait({"type": "http.request", "body": body, "more_body": True})
        self.queue.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def __call__(self) -> Message:
        return await self.queue.get()

    def hang_up(self) -> None:
        self.queue.put_nowait(DISCONNECT)


class ForeignFuture:
    """What granian's receive gives: awaitable and a future, no coroutine, never done at once."""

    def __init__(self) -> None:
        self._message: Message | None = None
        self._error: Exception | None = None
        self._callbacks: list[tuple[Callable[[Any], object], Any]] = []
        self.cancelled = False

    def add_done_callback(self, callback: Callable[[Any], object], context: Any = None) -> None:
        self._callbacks.append((callback, context))

    def done(self) -> bool:
        return self._message is not None or self._error is not None or self.cancelled

    def result(self) -> Message:
        if self._error is not None:
            raise self._error
        if self._message is None:
            raise asyncio.CancelledError if self.cancelled else asyncio.InvalidStateError
        return self._message

    def cancel(self, msg: object = None) -> bool:
        self.cancelled = True
        return True

    def settle(self, message: Message) -> None:
        self._message = message
        self._tell()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._tell()

    def _tell(self) -> None:
        for callback, _ in self._callbacks:
            callback(self)


class GranianReceive:
    """`receive` is a builtin method (here a deque's, there one of a Rust class)."""

    def __init__(self, futures: int = 2) -> None:
        self.futures = [ForeignFuture() for _ in range(futures)]
        self.receive: Receive = deque(self.futures).popleft  # type: ignore[assignment]

    def hang_up(self) -> None:
        self.futures[0].settle(DISCONNECT)
