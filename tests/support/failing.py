"""A gateway around an application that does not start: `tests.support.failing:create_app`."""

from asgi_gateway import Gateway
from asgi_gateway.asgi import Receive, Scope, Send
from asgi_gateway.settings import load


def create_app() -> Gateway:
    return Gateway(load().settings, inner=inner)


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    assert (await receive())["type"] == "lifespan.startup"
    await send({"type": "lifespan.startup.failed", "message": "the inner one found no weights"})
