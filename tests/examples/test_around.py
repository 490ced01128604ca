"""In one process: what stands around a gateway, and two gateways beside each other."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import pytest

from asgi_gateway.asgi import App, Message, Receive, Scope, Send
from tests.support.asgi_client import AsgiClient, turns
from tests.support.gateway import driven
from tests.support.held import Held, metric
from tests.support.upstream import FakeUpstream

T = TypeVar("T")


class Grouped:
    """What an HTTP middleware of Starlette and FastAPI does to the application that it wraps.

    `receive()` waits in a task group, for a message or for the end of the answer; `send()` hands
    each message over to another task, and the last one returns when the answer has gone out.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answered = anyio.Event()
        into, out = anyio.create_memory_object_stream[Message]()

        async def receive_or_end() -> Message:
            if answered.is_set():
                return {"type": "http.disconnect"}
            async with anyio.create_task_group() as group:

                async def first(call: Callable[[], Awaitable[T]]) -> T:
                    result = await call()
                    group.cancel_scope.cancel()
                    return result

                group.start_soon(first, answered.wait)
                message = await first(receive)
            return {"type": "http.disconnect"} if answered.is_set() else message

        async def hand_over(message: Message) -> None:
            await into.send(message)
            if message["type"] == "http.response.body":
                await answered.wait()

        async def run() -> None:
            await self._app(scope, receive_or_end, hand_over)

        async with anyio.create_task_group() as group, into, out:
            group.start_soon(run)
            await send(await out.receive())
            await send(await out.receive())
            answered.set()


async def test_polls_under_a_middleware_with_task_groups(upstream: FakeUpstream) -> None:
    """Ready, parked until the result or the end of the hold, and left by their client."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    held = Held(upstream)
    async with driven(upstream.url) as gateway:
        direct, gateway.client = gateway.client, AsgiClient(Grouped(gateway.gateway))
        await gateway.handshake()
        first, second = [(await gateway.submit(n)).json()["request_id"] for n in range(2)]

        poll = gateway.poll(first)
        await shows(direct, "polls_inflight", 1)
        await gateway.advance(gateway.gateway.settings.poll.hold_s)
        assert (await poll.response()).status == 408

        poll = gateway.poll(first)
        await shows(direct, "polls_inflight", 1)
        poll.hang_up()
        await shows(direct, "polls_inflight", 0)

        poll = gateway.poll(first)
        await shows(direct, "polls_inflight", 1)
        held.release()
        assert (await poll.response()).status == 200
        await shows(direct, "samples_total", 2, outcome="succeeded")
        for _ in range(2):
            assert (await gateway.poll(second).response()).status == 200
        await shows(direct, "bugs_total", 0)
    gc.collect()
    await turns()
    assert complaints == []


async def shows(client: AsgiClient, name: str, value: float, **labels: str) -> None:
    """Until a metric has this value."""
    async with asyncio.timeout(20):
        while metric((await client.get("/metrics")).body, name, **labels) != value:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_the_end_of_one_gateway_is_not_the_others(upstream: FakeUpstream) -> None:
    before = list(gc.callbacks)
    async with driven(upstream.url) as one:
        await one.handshake()
        async with driven(upstream.url) as other:
            await other.handshake()
            assert (await other.submit()).status == 200
        assert (await other.client.get("/api/v1/healthz")).status == 503
        request_id = (await one.submit()).json()["request_id"]
        assert (await one.poll(request_id).response()).status == 200
        await shows(one.client, "samples_total", 1, outcome="succeeded")
        await shows(one.client, "sessions", 1)
    assert gc.callbacks == before


async def test_what_an_inner_application_raises_reaches_the_host(upstream: FakeUpstream) -> None:
    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError(scope["path"])

    async with driven(upstream.url, inner=inner) as gateway:
        with pytest.raises(LookupError, match="/theirs"):
            await gateway.client.get("/theirs")
        await shows(gateway.client, "bugs_total", 0)
