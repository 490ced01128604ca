"""An application for servers' command lines whose start fails."""

from asgi_gateway import Gateway, Settings
from asgi_gateway.asgi import Receive, Scope, Send

REASON = "the model is not there"


async def _inner(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.failed", "message": REASON})


def create_app() -> Gateway:
    return Gateway(Settings(), _inner)
