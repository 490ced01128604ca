"""The gateway around a FastAPI application: sampling is the gateway's, the rest is FastAPI's.

The gateway runs the application's lifespan within its own, so nothing is opened by hand.

    ASGI_GATEWAY_UPSTREAM__URLS=http://127.0.0.1:8001 \\
        uvicorn --factory examples.embed.wrapped_fastapi:create_app
"""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI

from asgi_gateway import Gateway
from asgi_gateway.configuration import load


def create_app() -> Gateway:
    return Gateway(load().settings, inner=application())


def application() -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.model = "loaded"
        yield
        print("host: the gateway is still open", flush=True)

    app = FastAPI(lifespan=lifespan)

    @app.get("/status")
    async def status() -> dict[str, str]:
        return {"host": "FastAPI", "model": app.state.model}

    return app
