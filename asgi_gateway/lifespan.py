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

    async def shutdown(self) -> str | None:
        """Stop the inner app; returns its message where it failed to."""
        if self._task is None or self._task.done():
            return None
        answer = await self._phase(SHUTDOWN)
        if answer is None or answer["type"] == f"{SHUTDOWN}.complete":
            return None
        return str(answer.get("message", "")) or "the inner application failed to stop"

    async def end(self) -> None:
        """End what is left of the inner app, as the end of a server's event loop does.

        An app may go on after its last answer; waiting for it could be for ever.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _phase(self, kind: str) -> Message | None:
        """Send one event and wait for its answer, or for the end of the app."""
        assert self._task is not None
        self._to_app.put_nowait({"type": kind})
        answer = asyncio.ensure_future(self._from_app.get())
        try:
            await asyncio.wait([answer, self._task], return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        finally:
            answer.cancel()

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
    """Answer the server's lifespan events; a failed start is reported so that it exits non-zero.

    Whatever ends it, a cancel by the server included, nothing of either app runs on.
    """
    kind = STARTUP
    try:
        failure = await _start(receive, open_, inner)
        if failure is None:
            await send({"type": f"{STARTUP}.complete"})
            await _next(receive, SHUTDOWN)
            kind = SHUTDOWN
            failure = await inner.shutdown() if inner is not None else None
    finally:
        if inner is not None:
            await inner.end()
        await close()
    if failure is None:
        await send({"type": f"{kind}.complete"})
    else:
        await send({"type": f"{kind}.failed", "message": failure})


async def _start(
    receive: Receive, open_: Callable[[], Awaitable[None]], inner: InnerLifespan | None
) -> str | None:
    """Ours, then the inner app's; returns why where either failed."""
    await _next(receive, STARTUP)
    try:
        await open_()
        return await inner.startup() if inner is not None else None
    except Exception as error:  # noqa: BLE001 - the server logs it and stops
        return f"{type(error).__name__}: {error}"


async def _next(receive: Receive, kind: str) -> None:
    """Wait for one event; others mean nothing here."""
    while (await receive())["type"] != kind:
        pass
