"""The gateway behind a reverse proxy that serves it below /tinker, whether it strips that or not.

A proxy that strips the prefix needs nothing at all: the gateway never writes its own address into
an answer. One that passes paths on whole needs `root_path`, which is set here and not by a flag of
the server: the servers differ in what such a flag does to a path (docs/embedding.md). Set this way
the gateway takes both.

    ASGI_GATEWAY_UPSTREAM__URLS=http://127.0.0.1:8001 \\
        uvicorn --factory examples.embed.behind_proxy:create_app

    location /tinker/ { proxy_pass http://127.0.0.1:8000; }     # nginx, whole
    location /tinker/ { proxy_pass http://127.0.0.1:8000/; }    # nginx, stripped
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from asgi_gateway import Gateway
from asgi_gateway.configuration import load

PREFIX = "/tinker"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def create_app() -> App:
    gateway = Gateway(load().settings)

    async def below_prefix(scope: Scope, receive: Receive, send: Send) -> None:
        await gateway({**scope, "root_path": PREFIX}, receive, send)

    return below_prefix
