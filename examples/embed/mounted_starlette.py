"""The gateway below a prefix of a Starlette application, beside routes of its own.

Starlette runs no lifespan for what it mounts, so the application opens the gateway in its own.

    ASGI_GATEWAY_UPSTREAM__URLS=http://127.0.0.1:8001 \\
        uvicorn --factory examples.embed.mounted_starlette:create_app

    TINKER_BASE_URL=http://127.0.0.1:8000/tinker python my_script.py
"""

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from asgi_gateway import Gateway
from asgi_gateway.configuration import load


def create_app() -> Starlette:
    gateway = Gateway(load().settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with gateway.running():
            yield
        print("host: the gateway is closed", flush=True)

    routes = [Route("/status", status), Mount("/tinker", gateway)]
    return Starlette(routes=routes, lifespan=lifespan)


async def status(_: Request) -> JSONResponse:
    return JSONResponse({"host": "Starlette"})
