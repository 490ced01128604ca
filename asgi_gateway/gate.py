"""The transports of `serve`: one write where uvicorn makes two, and an end to those not read."""

import asyncio
from typing import Protocol

from asgi_gateway.frontdoor import WRITE_BYTES, FrontDoor
from asgi_gateway.onewrite import OneWrite


class Owner(Protocol):
    """The connection's protocol."""

    def owes_bytes(self) -> bool: ...

    def linger(self) -> None: ...


class Gate(OneWrite):
    """A transport that is not closed over bytes which its client still sends, and that ends where
    what is written is not taken."""

    __slots__ = ("_door", "_moved_at", "_unsent", "owner")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        door: FrontDoor,
        owner: Owner,
    ) -> None:
        super().__init__(transport, loop)
        self._door = door
        # None when the connection is lost: the two hold each other.
        self.owner: Owner | None = owner
        self._unsent, self._moved_at = 0, 0.0

    def lost(self) -> None:
        self.owner = None
        self._door.writing.pop(self, None)

    def close(self) -> None:
        owner = self.owner
        if owner is not None and not self.is_closing() and owner.owes_bytes():
            owner.linger()
            return
        super().close()
        if owner is not None and self._transport.get_write_buffer_size():
            self.watch()

    def half_close(self) -> None:
        """Send what was written and the end; nothing is written after it."""
        self._flush()
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self.is_closing = _yes
        else:
            self._transport.close()

    def watch(self) -> None:
        """More is written than the client takes at once."""
        if self not in self._door.writing:
            self._door.writing[self] = None
            self._unsent = self._transport.get_write_buffer_size()
            self._moved_at = self._door.now

    def look(self, now: float, limit_s: float) -> bool:
        """Whether the client took too little of what is written to it, for so long."""
        unsent = self._transport.get_write_buffer_size()
        if not unsent:
            del self._door.writing[self]
            return False
        if unsent <= self._unsent - WRITE_BYTES:
            self._unsent, self._moved_at = unsent, now
            return False
        self._unsent = max(self._unsent, unsent)
        if now - self._moved_at <= limit_s:
            return False
        del self._door.writing[self]
        self._door.count("write_timeout")
        self._transport.abort()
        return True


def _yes() -> bool:
    return True
