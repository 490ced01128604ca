"""The lifespan protocol: ours wraps the inner app's, starting first and stopping last."""

import asyncio
from collections.abc import Awaitable, Callable

from asgi_gateway.asgi import App, Message, Receive, Scope, Send

STARTUP, SHUTDOWN = "lifespan.startup", "lifespan.shutdown"


class InnerLifespan:
    """Runs the inner app's lifespan in a task of its own, one phase at a time."""

    def __init__(self, app: App, scope: Scope) -> None:
        self._app = app
        self._scope = scope
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def startup(self) -> str | None:
        """Start the inner app; returns its message where it failed, None where it started.

        An app that raises before it answers has no lifespan, as ASGI says, and is served without.
        """
        self._task = asyncio.create_task(self._run())
        answer = await self._phase(STARTUP)
        if answer is None or answer["type"] == f"{STARTUP}.complete":
            return None
        return str(answer.get("message", "")) or "the inner application failed to start"

    async def shutdown(self) -> None:
        if self._task is not None and not self._task.done():
            await self._phase(SHUTDOWN)
            await asyncio.wait([self._task])

    async def _phase(self, kind: str) -> Message | None:
        """Send one event and wait for its answer, or for the end of the app."""
        assert self._task is not None
        self._to_app.put_nowait({"type": kind})
        answer = asyncio.ensure_future(self._from_app.get())
        await asyncio.wait([answer, self._task], return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.cancel()
        return None

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._to_app.get, self._from_app.put)
        except Exception:  # noqa: BLE001 - how an app says that it has no lifespan
            return


async def serve_lifespan(
    receive: Receive,
    send: Send,
    open_: Callable[[], Awaitable[None]],
    close: Callable[[], Awaitable[None]],
    inner: InnerLifespan | None,
) -> None:
    """Answer the server's lifespan events; a failed start is reported so that it exits non-zero."""
    while True:
        message = await receive()
        if message["type"] == STARTUP:
            try:
                await open_()
                failure = await inner.startup() if inner is not None else None
            except Exception as error:  # noqa: BLE001 - the server logs it and stops
                failure = f"{type(error).__name__}: {error}"
            if failure is not None:
                await close()
                await send({"type": f"{STARTUP}.failed", "message": failure})
                return
            await send({"type": f"{STARTUP}.complete"})
        elif message["type"] == SHUTDOWN:
            if inner is not None:
                await inner.shutdown()
            await close()
            await send({"type": f"{SHUTDOWN}.complete"})
            return
