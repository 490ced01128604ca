"""One channel on a connection of its own, which is made anew whenever it is lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from asgi_gateway.shared.backoff import Backoff
from asgi_gateway.shared.errors import ServerError, SharedStoreError
from asgi_gateway.shared.node import STEADY_S, Terms
from asgi_gateway.shared.waiting import Command
from asgi_gateway.shared.wire import Wire

log = logging.getLogger(__name__)


class Subscription:
    """on_message: called with what was published. on_gap: called each time when messages begin to
    come, the first included, for what was published before was missed.
    """

    def __init__(
        self,
        channel: str,
        on_message: Callable[[bytes], None],
        on_gap: Callable[[], None],
        terms: Terms,
        connect: Callable[[], Awaitable[Wire]],
    ) -> None:
        self.channel = channel
        self.up = False
        self.trouble = "not subscribed yet"
        self._channel = channel.encode()
        self._on_message = on_message
        self._on_gap = on_gap
        self._terms = terms
        self._connect = connect
        self._wire: Wire | None = None
        # When it was last asked whether it is there, and that has not been answered.
        self._pinged_at: float | None = None
        self._lost = asyncio.Event()
        self._closed = False
        # The log has that it is down.
        self._told = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Subscription to {self.channel}, {'up' if self.up else 'down'}>"

    def open(self) -> None:
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._wire is not None:
            self._wire.lose("the subscription was closed")

    def tick(self, now: float) -> None:
        """A server that says nothing is asked; one that does not answer is left."""
        wire, timeout_s = self._wire, self._terms.timeout_s
        if wire is None:
            return
        if self._pinged_at is not None and wire.heard_at >= self._pinged_at:
            self._pinged_at = None
        if self._pinged_at is not None:
            if now - self._pinged_at > timeout_s:
                wire.lose(f"the server said nothing for {timeout_s:g} s")
        elif now - wire.heard_at > timeout_s:
            self._pinged_at = now
            wire.say("PING")

    # --- from the connection ----------------------------------------------------------------------

    def refused(self, command: Command, error: ServerError) -> bool:  # noqa: ARG002
        """Nothing is asked on it."""
        return False

    def writable(self) -> None:
        """Nor does anything wait to be written."""

    def lost(self, wire: Wire) -> None:
        self._wire = None
        self._down(f"{wire.server}: {wire.loss}")
        self._lost.set()

    # --- inside -----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        backoff = Backoff(self._terms.random)
        while True:
            try:
                wire = await self._connect()
            except SharedStoreError as error:
                self._down(str(error))
            except Exception as error:
                self._down(f"{type(error).__name__} while connecting")
                log.exception("subscribing to the shared store failed in a way not foreseen")
            else:
                began = self._terms.clock.now()
                await self._listen(wire)
                if self._terms.clock.now() - began > STEADY_S:
                    backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def _listen(self, wire: Wire) -> None:
        """Until it is lost."""
        if wire.loss is not None:
            self._down(f"{wire.server}: {wire.loss}")
            return
        self._lost.clear()
        self._pinged_at = self._terms.clock.now()
        self._wire = wire
        wire.owner, wire.listener = self, self._heard
        wire.say("SUBSCRIBE", self._channel)
        await self._lost.wait()

    def _heard(self, reply: Any) -> None:
        match reply:
            case [b"message", self._channel, bytes(message)]:
                self._call(self._on_message, message)
            case [b"subscribe", self._channel, 1] if not self.up:
                say = log.warning if self._told else log.info
                say("subscribed to %s", self.channel)
                self.up, self._told = True, False
                self._call(self._on_gap)
            case [b"pong", b""]:
                pass
            case _ if self._wire is not None:
                said = f": {reply}" if isinstance(reply, ServerError) else ""
                self._wire.lose(f"the server answers a subscription with something else{said}")

    def _call(self, what: Callable[..., None], *arguments: bytes) -> None:
        if self._closed:
            return
        try:
            what(*arguments)
        except Exception:
            log.exception("what was called with a message of the shared store failed")

    def _down(self, why: str) -> None:
        if not (self._told or self._closed):
            self._told = True
            log.warning("not subscribed to %s: %s", self.channel, why)
        self.up = False
        self.trouble = why
