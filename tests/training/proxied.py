"""What the proxy's tests serve: nothing but the proxy, lifespan included."""

import os

from asgi_gateway.asgi import Receive, Scope, Send
from asgi_gateway.lifespan import serve_lifespan
from asgi_gateway.training.proxy import Proxy

_proxy = Proxy(os.environ["TRAINER_URL"])


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await serve_lifespan(receive, send, _open, _proxy.close, None)
    else:
        await _proxy(scope, receive, send)


async def _open() -> None:
    _proxy.open()
