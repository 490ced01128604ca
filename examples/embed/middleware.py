"""The gateway as a middleware of a FastAPI application.

The same as around it, for an application that somebody else hands to the server: what the gateway
owns never reaches the application, and its lifespan runs within the gateway's. Middleware that is
added after it stands in front of it and sees every sample and every poll.

    ASGI_GATEWAY_UPSTREAM__URLS=http://127.0.0.1:8001 \\
        uvicorn --factory examples.embed.middleware:create_app
"""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.types import ASGIApp

from asgi_gateway import Gateway
from asgi_gateway.configuration import load


def sampling(app: ASGIApp) -> Gateway:
    return Gateway(load().settings, inner=app)


def create_app() -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.model = "loaded"
        yield
        print("host: the gateway is still open", flush=True)

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(sampling)

    @app.get("/status")
    async def status() -> dict[str, str]:
        return {"host": "FastAPI", "model": app.state.model}

    return app
