"""An application behind the front door of `serve`, on uvloop in a thread of its own."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from asgi_gateway.asgi import App
from asgi_gateway.frontdoor import FrontDoor
from asgi_gateway.guarded import GuardedProtocol
from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import LimitSettings


class Guarded:
    def __init__(
        self, port: int, server: uvicorn.Server, door: FrontDoor, metrics: Metrics
    ) -> None:
        self.port = port
        self.server = server
        self.door = door
        self.metrics = metrics

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    @property
    def closed(self) -> dict[str, int]:
        """Connections that were ended, by reason."""
        return {reason: n for reason, n in self.metrics.closed.items() if n}


@contextlib.asynccontextmanager
async def guarded(
    app: App, *, keepalive_s: float = 30.0, connections: int = 100, **limits: Any
) -> AsyncIterator[Guarded]:
    """limits: fields of LimitSettings."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        metrics = Metrics()
        door = FrontDoor(
            LimitSettings(**limits),
            keepalive_s=keepalive_s,
            connections=connections,
            metrics=metrics,
        )
        protocol = type(GuardedProtocol.__name__, (GuardedProtocol,), {"door": door})
        config = uvicorn.Config(
            app, http=protocol, loop="uvloop", lifespan="off", log_level="warning"
        )
        server = uvicorn.Server(config)
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        serving.start()
        try:
            yield Guarded(listener.getsockname()[1], server, door, metrics)
        finally:
            server.should_exit = True
            await asyncio.to_thread(serving.join)
