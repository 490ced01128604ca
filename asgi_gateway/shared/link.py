"""The way to a shared store: commands out in one write per turn of the loop, replies to callbacks.

    link.call(group, ["FCALL", "look", "1", key, ...], done)

A call appends to the batch of its server and returns; `done` is called with the reply, or with what
came of it, from within the socket's callback: no task, no future, no timer. The order of the calls
of a group is kept except where a server refuses or points elsewhere, or was lost.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from asgi_gateway.clock import Clock
from asgi_gateway.shared.address import parse
from asgi_gateway.shared.cluster import Cluster
from asgi_gateway.shared.dialer import Dialer
from asgi_gateway.shared.errors import NotSent, Overfull
from asgi_gateway.shared.node import Terms
from asgi_gateway.shared.refusals import Later
from asgi_gateway.shared.resp import Argument, packer
from asgi_gateway.shared.slots import GROUPS
from asgi_gateway.shared.sole import Sole
from asgi_gateway.shared.subscription import Subscription
from asgi_gateway.shared.waiting import Command, Done, Room, Waiting, answer_to
from asgi_gateway.shared.wire import MAX_REPLY_BYTES

# How often deadlines are looked at: a twentieth of the timeout, within these.
MIN_TICK_S: Final = 0.01
MAX_TICK_S: Final = 0.1
# A tick so many periods late follows a loop that stood still: replies may wait in the socket, and
# so many ticks are left to them before deadlines count again.
LATE_TICKS: Final = 4


class Link:
    """Opened and closed by whoever made it. Not for more than one event loop."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        max_waiting: int,
        max_waiting_bytes: int,
        clock: Clock,
        prefix: str = "agw",
        name: str = "asgi-gateway",
        max_reply_bytes: int = MAX_REPLY_BYTES,
        credentials: Callable[[], tuple[str, str]] | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        """timeout_s: of a command, and of a connect. max_waiting, max_waiting_bytes: of commands
        that have no reply yet, sent or not. prefix: what keys begin with inside their braces.
        credentials: user and password, asked for before each login in place of the URL's.

        Raises:
            BadUrl: the URL cannot be used; the text shows no password.
            MissingExtra: libvalkey is not installed.
        """
        self._pack = packer()
        self._clock = clock
        self._room = Room(max_waiting, max_waiting_bytes)
        self._tick_s = max(MIN_TICK_S, min(MAX_TICK_S, timeout_s / 20))
        address = parse(url)
        dialer = Dialer(
            address,
            timeout_s=timeout_s,
            clock=clock,
            name=name,
            credentials=credentials,
            max_reply_bytes=max_reply_bytes,
        )
        self._terms = Terms(dialer, self._room, clock, timeout_s, random)
        self._later = Later(self._room, timeout_s)
        self._by_group: list[Waiting] = [Waiting(self._room)] * GROUPS
        self._servers: Sole | Cluster
        if address.kind == "cluster":
            self._servers = Cluster(self._terms, self._later, self._by_group, prefix=prefix)
        else:
            self._servers = Sole(self._terms, self._later, self._by_group)
        self._subscriptions: list[Subscription] = []
        self._loop: asyncio.AbstractEventLoop
        self._ticker: asyncio.TimerHandle | None = None
        self._ticked_at = clock.now()
        self._grace_ticks = 0
        self._open = False

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<Link to {self._terms.dialer.address!r}, {state}, {self._room!r}>"

    @property
    def up(self) -> bool:
        """Whether every group has a server that answers."""
        return self._open and self._servers.down_since is None

    @property
    def down_since(self) -> float | None:
        """Of the clock; None while it is up."""
        return self._servers.down_since if self._open else self._ticked_at

    @property
    def trouble(self) -> str:
        """What is wrong, or was last; without passwords."""
        return self._servers.trouble if self._open else "not open"

    @property
    def waiting(self) -> int:
        """Commands without a reply."""
        return self._room.count

    @property
    def waiting_bytes(self) -> int:
        return self._room.nbytes

    async def open(self) -> None:
        """Begin to connect; returns when that has succeeded or failed for the first time."""
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._servers.open()
        for subscription in self._subscriptions:
            subscription.open()
        self._ticked_at = self._clock.now()
        self._ticker = self._loop.call_later(self._tick_s, self._tick)
        try:
            async with asyncio.timeout(self._terms.timeout_s):
                await self._servers.tried()
        except TimeoutError:
            pass  # it is tried for as long as the link is open

    async def close(self) -> None:
        """Whoever waits for a reply is told that none comes."""
        if not self._open:
            return
        self._open = False
        if self._ticker is not None:
            self._ticker.cancel()
        for subscription in self._subscriptions:
            await subscription.close()
        await self._servers.close()
        self._later.drop("the link was closed")

    def call(self, group: int | None, args: Sequence[Argument], done: Done) -> None:
        """Send a command with the next batch. group: which keys it has; None: none, so that any
        primary does. done: called once, and never from within this call; it must not wait.
        """
        packed = self._pack(tuple(args))
        room, nbytes = self._room, len(packed)
        if room.count >= room.most or room.nbytes + nbytes > room.most_bytes or not self._open:
            self._refuse(done)
            return
        room.count += 1
        room.nbytes += nbytes
        where = self._by_group[group] if group is not None else self._servers.anywhere()
        where.put(Command(packed, done, group, self._clock.now()))

    def ask(self, group: int | None, args: Sequence[Argument]) -> Awaitable[Any]:
        """The same for the rare calls that are waited for.

        Raises:
            SharedStoreError: out of the future.
        """
        future, done = answer_to(asyncio.get_running_loop())
        self.call(group, args, done)
        return future

    def subscribe(
        self, channel: str, on_message: Callable[[bytes], None], on_gap: Callable[[], None]
    ) -> Subscription:
        """Hear what is published, while the link is open; see Subscription."""
        subscription = Subscription(
            channel, on_message, on_gap, self._terms, self._servers.subscribable
        )
        self._subscriptions.append(subscription)
        if self._open:
            subscription.open()
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.remove(subscription)
        await subscription.close()

    # --- inside -----------------------------------------------------------------------------------

    def _refuse(self, done: Done) -> None:
        room = self._room
        error = NotSent("the link is not open")
        if self._open:
            error = Overfull(
                f"{room.count} commands of {room.nbytes} bytes wait for the shared store, "
                f"at most {room.most} of {room.most_bytes} may"
            )
        asyncio.get_running_loop().call_soon(done, error)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(self._tick_s, self._tick)
        now = self._clock.now()
        if now - self._ticked_at > LATE_TICKS * self._tick_s:
            self._grace_ticks = LATE_TICKS
        self._ticked_at = now
        for command in self._later.due(now):
            group = command.group
            where = self._by_group[group] if group is not None else self._servers.anywhere()
            where.place(command)
        if self._grace_ticks:
            self._grace_ticks -= 1
        else:
            self._servers.tick(now)
            for subscription in self._subscriptions:
                subscription.tick(now)
