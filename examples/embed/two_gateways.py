"""Two gateways in one process: two prefixes, two upstreams, two base models, nothing shared.

A host that mounts applications runs no lifespan for them, so it opens both gateways in its own.

    SMALL=http://127.0.0.1:8001 LARGE=http://127.0.0.1:8002 \\
        uvicorn --factory examples.embed.two_gateways:create_app

    TINKER_BASE_URL=http://127.0.0.1:8000/small python my_script.py
"""

import contextlib
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from asgi_gateway import Gateway, Settings
from asgi_gateway.settings import ModelSettings, UpstreamSettings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def create_app() -> "Host":
    return Host({"/small": of("small", "SMALL"), "/large": of("large", "LARGE")})


def of(model: str, variable: str) -> Gateway:
    """A gateway to one upstream, whose model clients call by its size."""
    upstream = UpstreamSettings(urls=(os.environ[variable],))
    return Gateway(Settings(upstream=upstream, models=ModelSettings(base=(f"{model}=stand-in",))))


class Host:
    """Does what a framework's mount does: the path stays whole, `root_path` says what is above."""

    def __init__(self, mounts: dict[str, Gateway]) -> None:
        self._mounts = mounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        for prefix, gateway in self._mounts.items():
            if scope["path"].startswith(f"{prefix}/"):
                root = scope.get("root_path", "") + prefix
                await gateway({**scope, "root_path": root}, receive, send)
                return
        if scope["type"] == "http":
            headers = [(b"content-length", b"16")]
            await send({"type": "http.response.start", "status": 404, "headers": headers})
            await send({"type": "http.response.body", "body": b"no gateway here\n"})
        else:
            await send({"type": "websocket.close"})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with contextlib.AsyncExitStack() as stack:
            for gateway in self._mounts.values():
                await stack.enter_async_context(gateway.running())
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})
