"""A SkyRL-like API server, in FastAPI: the stand-in trainer's routes, and the row of its engine.

    TINKER_DB=tinker.db VLLM_URL=http://... uvicorn --factory tests.support.skyrl:create_app

As SkyRL does, it publishes its vLLM when the first run is created, has none before and takes it
back at its end. `/debug/state` tells what it knows.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from aiohttp import web
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tests.support.engine import Engine
from tests.support.trainer_rest import RestRoutes
from tests.support.trainer_runs import RunRoutes
from tests.support.trainer_sessions import SessionRoutes
from tests.support.trainer_state import Options, Refused, State

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Asked:
    """FastAPI's request with the names that the stand-in trainer's routes read."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.headers = request.headers
        self.match_info = request.path_params
        self.query = request.query_params
        self.path = request.url.path
        self.raw_path = request.url.path
        self.scheme = request.url.scheme
        self.host = request.headers["host"]
        self.content_type = request.headers.get("content-type", "").partition(";")[0]

    async def read(self) -> bytes:
        return await self._request.body()


def create_app() -> FastAPI:
    engine = Engine(Path(os.environ["TINKER_DB"]))
    vllm = os.environ["VLLM_URL"]
    state = State(Options())
    paths: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.started = True
        yield
        engine.publish(None)
        engine.close()
        print("trainer: stopped", flush=True)

    app = FastAPI(title="A SkyRL-like server", lifespan=lifespan)

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"detail": error.detail}, error.status)

    @app.get("/debug/state")
    async def shown() -> dict[str, Any]:
        return {**state.shown(), "started": app.state.started, "paths": paths}

    def route(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            paths.append(request.url.path)
            answer = await handler(cast(web.Request, Asked(request)))
            assert isinstance(answer, web.Response)
            if request.url.path.endswith("/create_model"):
                engine.publish(vllm)
            body = answer.body if isinstance(answer.body, bytes) else b""
            place = answer.headers.get("Location")
            headers = {} if place is None else {"Location": place}
            return Response(body, answer.status, headers, answer.content_type)

        return endpoint

    for group in (SessionRoutes(state), RunRoutes(state), RestRoutes(state)):
        for one in group.routes():
            app.add_api_route(one.path, route(cast(Handler, one.handler)), methods=[one.method])
    return app
