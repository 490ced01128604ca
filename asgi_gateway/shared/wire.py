"""One connection to a server: commands in one write, replies in the order of the commands.

No task, no future and no timer per command. Whatever is wrong with what the server says ends the
connection, for no reply after it could be told to be the right one.
"""

import asyncio
import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from asgi_gateway.clock import Clock
from asgi_gateway.shared.address import Server
from asgi_gateway.shared.errors import ServerError, Unanswered
from asgi_gateway.shared.resp import NOTHING, Argument, Reply, packer, reader
from asgi_gateway.shared.waiting import Command, Room, answer_to, tell
from asgi_gateway.textline import one_line

log = logging.getLogger(__name__)

# A write of about so much at once: what a server does not read waits here, as a few of them.
WRITE_BYTES: Final = 1 << 18
# close() then sends RST instead of FIN.
RESET: Final = struct.pack("ii", 1, 0)
# Bytes without the end of one reply; results are read in parts if they are larger.
MAX_REPLY_BYTES: Final = 64 << 20


class Owner(Protocol):
    """Who uses a connection after it was made."""

    def refused(self, command: Command, error: ServerError) -> bool:
        """Whether a command that the server did not do is tried again: it is the owner's then."""

    def lost(self, wire: "Wire") -> None:
        """It is closed; what was sent was told so."""

    def writable(self) -> None:
        """The server reads again."""


class Wire(asyncio.Protocol):
    """paused: the server does not read what it was sent. loss: why it is closed, else None."""

    __slots__ = (
        "_clock",
        "_closing",
        "_feed",
        "_gets",
        "_loop",
        "_max_reply_bytes",
        "_transport",
        "_unparsed",
        "asked_at",
        "heard_at",
        "listener",
        "loss",
        "owner",
        "paused",
        "room",
        "sent",
        "server",
    )

    def __init__(
        self,
        server: Server,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self.server = server
        self.owner: Owner | None = None
        # What comes without having been asked for, once it was subscribed to.
        self.listener: Callable[[Any], None] | None = None
        self.sent: deque[Command] = deque()
        # Of what is asked before it has an owner.
        self.room = Room(0, 0)
        self.paused = False
        self.loss: str | None = None
        self._loop = loop
        self._clock = clock
        self._transport: asyncio.Transport
        self._closing: Callable[[], bool]
        parser = reader()
        self._feed, self._gets = parser.feed, parser.gets
        self._unparsed = 0
        self._max_reply_bytes = max_reply_bytes
        # When `sent` got its first command, and when the server last said something.
        self.asked_at = self.heard_at = clock.now()

    def __repr__(self) -> str:
        state = "open" if self.loss is None else "closed"
        return f"<Wire to {self.server}, {state}, {len(self.sent)} sent>"

    def flush(self, waiting: deque[Command]) -> None:
        """Send what waits, as long as the server reads."""
        sent = self.sent
        if waiting and not sent:
            self.asked_at = self._clock.now()
        while waiting and not self.paused and not self._closing():
            pieces, nbytes = [], 0
            while waiting and nbytes < WRITE_BYTES:
                command = waiting.popleft()
                sent.append(command)
                pieces.append(command.packed)
                nbytes += len(command.packed)
            self._transport.write(b"".join(pieces))

    def ask(self, *arguments: Argument) -> "asyncio.Future[Any]":
        """Send a command by itself.

        Raises:
            ServerError, Unanswered: out of the future.
        """
        future, done = answer_to(self._loop)
        command = Command(packer()(arguments), done, None, self._clock.now())
        self.room.count += 1
        self.room.nbytes += len(command.packed)
        unsent = deque((command,))
        self.flush(unsent)
        if unsent:
            self.room.settle(command, Unanswered(self.loss or "the connection is closing"))
        return future

    def say(self, *arguments: Argument) -> None:
        """Send a command whose reply is the listener's."""
        if not self._closing():
            self._transport.write(packer()(arguments))

    def lose(self, why: str) -> None:
        """Close at once; what was sent is told so."""
        if self.loss is not None:
            return
        self.loss = why
        if self.sent:
            self._take_back()
        self._transport.abort()
        unanswered = list(self.sent)
        self.sent.clear()
        for command in unanswered:
            self.room.settle(command, Unanswered(f"{self.server}: {why}"))
        if self.owner is not None:
            self.owner.lost(self)

    def _take_back(self) -> None:
        """Have the kernel drop what it has not delivered. It would try for minutes, and a submit
        that arrives after all would be a sample that nobody runs."""
        raw = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    # --- from the socket --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Some time before `connection_lost`; uvloop raises at a write in between.
        self._closing = self._transport.is_closing

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._clock.now()
        sent, room, gets = self.sent, self.room, self._gets
        self._unparsed += len(data)
        self._feed(data)
        while True:
            try:
                reply = gets()
            except Exception as error:  # noqa: BLE001 - what is raised is the library's choice
                self.lose(f"the server's reply cannot be read: {one_line(str(error), 100)}")
                return
            if reply is NOTHING:
                break
            self._unparsed = 0
            if not sent:
                if not self._heard(reply):
                    return
                continue
            command = sent.popleft()
            if reply.__class__ is ServerError and self._refused(command, reply):
                continue
            # As `room.settle` does; a call less for each reply.
            room.count -= 1
            room.nbytes -= len(command.packed)
            done = command.done
            if done is not None:
                command.done = None
                try:
                    done(reply)
                except Exception:
                    log.exception("what was called with a reply of the shared store failed")
        if self._unparsed > self._max_reply_bytes:
            self.lose(f"a reply has over {self._max_reply_bytes} bytes")

    def eof_received(self) -> None:
        """Close; connection_lost follows."""

    def connection_lost(self, error: Exception | None) -> None:
        self.lose("the connection was closed" if error is None else _named(error))

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.owner is not None:
            self.owner.writable()

    # --- rarely -----------------------------------------------------------------------------------

    def _heard(self, reply: Reply | ServerError) -> bool:
        """Whether anybody wants a reply that belongs to no command."""
        if self.loss is not None:
            return False
        if self.listener is None:
            self.lose("the server said something that nobody had asked for")
            return False
        self.listener(reply)
        return self.loss is None

    def _refused(self, command: Command, error: ServerError) -> bool:
        owner = self.owner
        return command.done is not None and owner is not None and owner.refused(command, error)

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now: float, timeout_s: float) -> None:
        """Tell callers that have waited too long; close when all that time nothing was heard."""
        sent = self.sent
        if not sent:
            return
        if now - max(self.heard_at, self.asked_at) > timeout_s:
            self.lose(f"the server said nothing for {timeout_s:g} s")
            return
        for command in sent:
            if command.done is None:
                continue
            if command.born >= now - timeout_s:
                break
            # It keeps its place, and its room, until the reply comes.
            tell(command, Unanswered(f"{self.server}: no reply within {timeout_s:g} s"))


def _named(error: Exception) -> str:
    return f"the connection broke: {type(error).__name__}: {error}"
