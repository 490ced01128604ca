"""The gateway below a prefix of a FastAPI application.

FastAPI runs no lifespan for what it mounts, so the application opens the gateway in its own.

    ASGI_GATEWAY_UPSTREAM__URLS=http://127.0.0.1:8001 \\
        uvicorn --factory examples.embed.mounted_fastapi:create_app

    TINKER_BASE_URL=http://127.0.0.1:8000/tinker python my_script.py
"""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI

from asgi_gateway import Gateway
from asgi_gateway.configuration import load


def create_app() -> FastAPI:
    gateway = Gateway(load().settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield
        print("host: the gateway is closed", flush=True)

    app = FastAPI(lifespan=lifespan)

    @app.get("/status")
    async def status() -> dict[str, str]:
        return {"host": "FastAPI"}

    app.mount("/tinker", gateway)
    return app
