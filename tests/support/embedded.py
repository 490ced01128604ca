"""What tests serve where the trainer is embedded: the gateway around an application that is it.

    TRAINER_URL=http://... python -m uvicorn --factory tests.support.embedded:create_app

The application passes everything to the stand-in trainer, its lifespan included.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

from asgi_gateway import Gateway
from asgi_gateway.asgi import Receive, Scope, Send
from asgi_gateway.configuration import load
from asgi_gateway.lifespan import serve_lifespan
from asgi_gateway.training.proxy import Proxy
from tests.support.processes import Served, answers, environment, free_port, process


def create_app() -> Gateway:
    proxy = Proxy(os.environ["TRAINER_URL"])

    async def open_() -> None:
        proxy.open()

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await serve_lifespan(receive, send, open_, proxy.close, None)
        else:
            await proxy(scope, receive, send)

    return Gateway(load().settings, inner)


@contextlib.contextmanager
def embedded(upstream: str, trainer_url: str, **settings: object) -> Iterator[Served]:
    """The above in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--factory", "tests.support.embedded:create_app"]
    told = environment(upstream__urls=upstream, training__embedded=True, **settings)
    with process([*command, "--port", str(port)], {**told, "TRAINER_URL": trainer_url}) as started:
        started.wait_for(lambda: answers(port), "answer on its port")
        yield Served("uvicorn", port, started)
