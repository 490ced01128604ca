"""A server that takes writes: one connection for all commands, made anew whenever it is lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from asgi_gateway.clock import Clock
from asgi_gateway.shared.backoff import Backoff
from asgi_gateway.shared.dialer import Dialer
from asgi_gateway.shared.errors import ServerError, SharedStoreError
from asgi_gateway.shared.resp import packer
from asgi_gateway.shared.waiting import Command, Room, Waiting, ignore
from asgi_gateway.shared.wire import Wire

log = logging.getLogger(__name__)

# A connection that lived so long was a good one: the next try comes soon.
STEADY_S: Final = 10.0
# A server that is not asked anything is asked whether it is there.
IDLE_S: Final = 5.0


class Terms(msgspec.Struct, frozen=True):
    """What all parts of one link have in common. random: from 0 to 1."""

    dialer: Dialer
    room: Room
    clock: Clock
    timeout_s: float
    random: Callable[[], float]


class Owner(Protocol):
    """Who knows what a server is for."""

    def refused(self, node: "Node", command: Command, error: ServerError) -> bool:
        """Whether a command that a server did not do is tried again."""

    def unreachable(self, node: "Node") -> None:
        """It cannot be connected to, or was lost."""


class Node(Waiting):
    """connect: opens a connection to it; which server that is may change.

    tried: set once connecting has succeeded or failed. down_since: of the clock, None while up.
    trouble: what is wrong, or was last.
    """

    def __init__(
        self, name: str, owner: Owner, terms: Terms, connect: Callable[[], Awaitable[Wire]]
    ) -> None:
        super().__init__(terms.room)
        self.name = name
        self.trouble = "not connected yet"
        self.tried = asyncio.Event()
        self.down_since: float | None = terms.clock.now()
        self.wire: Wire | None = None
        self._owner = owner
        self._terms = terms
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(terms.random)
        self._flushing = False
        # The log has that it is not there.
        self._told = False
        # No command is sent to it any more; replies are waited for.
        self._leaving = False
        self._lost = asyncio.Event()
        self._task = self._loop.create_task(self._keep())

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<Node {self.name}, {state}, {len(self.waiting)} waiting>"

    @property
    def up(self) -> bool:
        return self.down_since is None

    def put(self, command: Command) -> None:
        self.waiting.append(command)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def leave(self, why: str) -> None:
        """Send nothing more on this connection, and take the next once all is answered."""
        if self.wire is not None and not self._leaving:
            self._leaving = True
            self._down(why)

    def tick(self, now: float) -> None:
        timeout_s = self._terms.timeout_s
        self.expire(now - timeout_s, self.trouble if not self.up else "it waited", timeout_s)
        wire = self.wire
        if wire is None:
            return
        wire.tick(now, timeout_s)
        if wire.sent or wire.loss is not None:
            return
        if self._leaving:
            wire.lose(self.trouble)
        elif now - wire.heard_at > IDLE_S and not self.waiting:
            ping = Command(packer()(("PING",)), ignore, None, now)
            self.room.count += 1
            self.room.nbytes += len(ping.packed)
            self.put(ping)

    def retire(self) -> list[Command]:
        """Connect no more; what has not been sent is the caller's again."""
        self._task.cancel()
        self._leaving = self._told = True
        self._down("it is not used any more")
        return self.take()

    @property
    def idle(self) -> bool:
        """Nothing is on the wire."""
        return self.wire is None or not self.wire.sent

    async def close(self) -> None:
        """Tells whoever waits for a reply."""
        self._task.cancel()
        self._leaving = True
        if self.wire is not None:
            self.wire.lose("the link was closed")
        self.drop("the link was closed")
        await asyncio.wait([self._task])

    # --- from the connection ----------------------------------------------------------------------

    def refused(self, command: Command, error: ServerError) -> bool:
        return self._owner.refused(self, command, error)

    def lost(self, wire: Wire) -> None:
        if wire is self.wire:
            self.wire = None
            self._lost.set()
            if not self._leaving:
                self._down(f"{wire.server}: {wire.loss}")

    def writable(self) -> None:
        self._flush()

    # --- inside -----------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._flushing = False
        if self.wire is not None and not self._leaving:
            self.wire.flush(self.waiting)

    async def _keep(self) -> None:
        while True:
            try:
                wire = await self._connect()
            except SharedStoreError as error:
                self._down(str(error))
                self._owner.unreachable(self)
            except Exception as error:
                self._down(f"{type(error).__name__} while connecting")
                log.exception("connecting to the shared store failed in a way not foreseen")
            else:
                await self._used(wire)
            self.tried.set()
            await asyncio.sleep(self._backoff.next_s())

    async def _used(self, wire: Wire) -> None:
        """Until it is lost."""
        self._lost.clear()
        self._leaving = False
        wire.room, wire.owner = self.room, self
        if wire.loss is not None:
            self._down(f"{wire.server}: {wire.loss}")
            return
        self.wire = wire
        if self._told:
            log.warning("the shared store %s is there again", wire.server)
        else:
            log.info("connected to the shared store %s", wire.server)
            self.trouble = ""
        self._told = False
        self.down_since = None
        self.tried.set()
        self._flush()
        began = self._terms.clock.now()
        await self._lost.wait()
        if self._terms.clock.now() - began > STEADY_S:
            self._backoff.reset()
        self._owner.unreachable(self)

    def _down(self, why: str) -> None:
        if not self._told:
            self._told = True
            log.warning("the shared store %s is not there: %s", self.name, why)
        if self.down_since is None:
            self.down_since = self._terms.clock.now()
        self.trouble = why
