"""A stand-in trainer: what a SkyRL-like Tinker API server does on the training side.

    python -m tests.support.trainer --port 0

The first line on stdout is `trainer listening on http://127.0.0.1:PORT`. It knows nothing of the
gateway and does not sample: `asample` is 404 here. `/debug/state` tells what it knows and saw,
`/debug/echo...` shows a request as it arrived, `/debug/stream` is a long body.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias
from urllib.request import urlopen

from aiohttp import web

from tests.support import trainer_seen
from tests.support.processes import Process, process
from tests.support.trainer_rest import RestRoutes
from tests.support.trainer_runs import RunRoutes
from tests.support.trainer_sessions import SessionRoutes, not_found
from tests.support.trainer_state import Options, Refused, State

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Trainer:
    """The server; `state` and `seen` are for tests in the same process."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.state = State(self.options)
        self.seen = trainer_seen.Seen()
        self.url = ""

    def app(self) -> web.Application:
        @web.middleware
        async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answered(request, handler)

        app = web.Application(middlewares=[answered], client_max_size=1 << 30)
        for group in (SessionRoutes(self.state), RunRoutes(self.state), RestRoutes(self.state)):
            app.router.add_routes(group.routes())
        app.router.add_get("/debug/state", self._debug_state)
        app.router.add_get("/debug/stream", trainer_seen.stream)
        app.router.add_route("*", "/debug/echo{tail:.*}", trainer_seen.echo)
        app.router.add_route("*", "/{tail:.*}", not_found)
        return app

    @contextlib.asynccontextmanager
    async def running(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator["Trainer"]:
        # Bodies are hashed as they came, and idle connections closed as uvicorn does by default.
        runner = web.AppRunner(
            self.app(), access_log=None, auto_decompress=False, keepalive_timeout=5.0
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            self.url = f"http://{host}:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith("/debug/"):
            await self.seen.add(request)
        try:
            return await handler(request)
        except Refused as refused:
            return web.json_response({"detail": refused.detail}, status=refused.status)
        except (KeyError, TypeError, ValueError) as error:
            return web.json_response({"detail": f"cannot read it: {error!r}"}, status=422)

    async def _debug_state(self, _: web.Request) -> web.Response:
        return web.json_response({**self.state.shown(), **self.seen.shown()})


class Served:
    """A stand-in in a process of its own."""

    def __init__(self, url: str, process: Process) -> None:
        self.url = url
        self.process = process

    def state(self) -> Any:
        """/debug/state."""
        with urlopen(f"{self.url}/debug/state", timeout=5) as answer:
            return json.load(answer)


@contextlib.contextmanager
def trainer(*arguments: str, port: int = 0) -> Iterator[Served]:
    """The stand-in, started with these flags."""
    command = [sys.executable, "-m", "tests.support.trainer", "--port", str(port), *arguments]
    with process(command) as started:
        line = started.first_line()
        assert line.startswith("trainer listening on http://"), started.story()
        yield Served(line.rsplit(" ", 1)[1], started)


def _arguments() -> tuple[int, Options]:
    parser = argparse.ArgumentParser(prog="tests.support.trainer", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", action="append", help="a base model; may be repeated")
    parser.add_argument("--work-s", type=float, default=Options.work_s)
    parser.add_argument("--hold-s", type=float, default=Options.hold_s)
    parser.add_argument("--pending", choices=["408", "try_again"], default=Options.pending)
    parser.add_argument("--silence-s", type=float, default=Options.silence_s)
    parser.add_argument("--dynamic-config", action="store_true")
    parser.add_argument("--compress", action="store_true", help="zstd on forward_backward")
    parser.add_argument("--short-paths", action="store_true", help="tinker://RUN/NAME")
    given = vars(parser.parse_args())
    models = tuple(given.pop("model") or Options.models)
    return given.pop("port"), Options(models=models, **given)


async def _main() -> None:
    port, options = _arguments()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with Trainer(options).running(port=port) as running:
        print(f"trainer listening on {running.url}", flush=True)
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(_main())
