"""A gateway that takes other settings at SIGHUP, as `asgi-gateway serve` does.

Which may change while it runs is in docs/settings.md; nothing does where any of them is wrong.

    ASGI_GATEWAY_CONFIG=gateway.toml uvicorn --factory examples.embed.reloading:create_app
    kill -HUP $(pgrep -f embed.reloading)
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from asgi_gateway import Gateway
from asgi_gateway.configuration import load
from asgi_gateway.settings import SettingsError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def reload(gateway: Gateway) -> None:
    try:
        changed = await gateway.reload(load().settings)
    except SettingsError as error:
        print("unchanged:", *error.problems, sep="\n", file=sys.stderr)
    else:
        print("changed:", *changed, file=sys.stderr)


def create_app() -> App:
    gateway = Gateway(load().settings)
    reloading: set[asyncio.Task[None]] = set()

    def begin() -> None:
        task = asyncio.create_task(reload(gateway))
        reloading.add(task)  # the loop alone would not keep it
        task.add_done_callback(reloading.discard)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, begin)
        await gateway(scope, receive, send)

    return app
