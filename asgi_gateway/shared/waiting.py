"""Commands that wait for a connection or for a reply, and the room that all of them share."""

import asyncio
import bisect
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from asgi_gateway.shared.errors import NotSent, ServerError
from asgi_gateway.shared.resp import Reply

log = logging.getLogger(__name__)

Done: TypeAlias = Callable[[Reply | Exception], None]

# Sent again at once so often, to where servers pointed; after that with a pause each time.
MAX_HOPS: Final = 5


class Command(msgspec.Struct, gc=False, eq=False):
    """packed: as it goes over the wire. done: None once its caller was told. born: of the clock.

    refusal: why a server did not do it, last time.
    """

    packed: bytes
    done: Done | None
    group: int | None
    born: float
    hops: int = 0
    refusal: ServerError | None = None

    def __repr__(self) -> str:
        return f"<Command of {len(self.packed)} bytes, group {self.group}, hops {self.hops}>"


class Room:
    """What of all commands is not answered, and how much that may be."""

    __slots__ = ("count", "most", "most_bytes", "nbytes")

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.count = 0
        self.nbytes = 0

    def __repr__(self) -> str:
        return f"<Room {self.count} of {self.most}, {self.nbytes} of {self.most_bytes} bytes>"

    def settle(self, command: Command, reply: Reply | Exception) -> None:
        """The command leaves, and its caller is told unless that was done before."""
        self.count -= 1
        self.nbytes -= len(command.packed)
        tell(command, reply)


def tell(command: Command, reply: Reply | Exception) -> None:
    done, command.done = command.done, None
    if done is not None:
        try:
            done(reply)
        except Exception:
            log.exception("what was called with a reply of the shared store failed")


def ignore(reply: Reply | Exception) -> None:
    """For commands whose reply says nothing."""


def not_taken(command: Command, why: str, timeout_s: float) -> NotSent:
    refusal = command.refusal
    return NotSent(f"not done within {timeout_s:g} s: {why if refusal is None else refusal}")


class Waiting:
    """Commands in the order in which they were born."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.waiting: deque[Command] = deque()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self.waiting)} waiting>"

    def put(self, command: Command) -> None:
        """The youngest of all."""
        self.waiting.append(command)

    def place(self, command: Command) -> None:
        """One that waited or was sent before."""
        waiting = self.waiting
        if not waiting or waiting[-1].born <= command.born:
            self.put(command)
        else:
            bisect.insort(waiting, command, key=_born)

    def expire(self, born_before: float, why: str, timeout_s: float) -> None:
        waiting = self.waiting
        while waiting and waiting[0].born < born_before:
            command = waiting.popleft()
            self.room.settle(command, not_taken(command, why, timeout_s))

    def drop(self, why: str) -> None:
        for command in self.take():
            self.room.settle(command, NotSent(why))

    def take(self) -> list[Command]:
        """All of them."""
        taken = list(self.waiting)
        self.waiting.clear()
        return taken


def _born(command: Command) -> float:
    return command.born


def answer_to(loop: asyncio.AbstractEventLoop) -> "tuple[asyncio.Future[Any], Done]":
    """A future, and what to call with the reply that it is of."""
    future: asyncio.Future[Any] = loop.create_future()

    def done(reply: Reply | Exception) -> None:
        if future.done():
            return  # nobody waits for it any more
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    return future, done
