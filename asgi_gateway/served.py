"""The protocol class that uvicorn makes a connection of, with what is the same for all of them."""

import asyncio
from collections.abc import Callable

from asgi_gateway.frontdoor import FrontDoor
from asgi_gateway.guarded import GuardedProtocol


def protocol_of(front: FrontDoor, connected: Callable[[], None]) -> type[GuardedProtocol]:
    """connected: called at each new connection."""

    class Protocol(GuardedProtocol):
        door = front

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            connected()

    return Protocol
