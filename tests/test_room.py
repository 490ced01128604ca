"""Results are dropped for room only where that makes enough of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from asgi_gateway.store.states import State
from tests.support.asgi_client import turns
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.held import metric
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion

LONG_WAIT_S = 31

MAX_BYTES = 100_000

pytestmark = pytest.mark.usefixtures("each_transport")


@contextlib.asynccontextmanager
async def one_held_and_one_running(upstream: FakeUpstream) -> AsyncIterator[tuple[Driven, str]]:
    """A gateway with little room, and the id of a result in it that was delivered."""
    running = asyncio.Event()

    async def fast_or_never(request: Request) -> Raw:
        """Prompts that begin with 9 are never answered."""
        if request.json()["prompt"][0] == 9:
            running.set()
            await request.hung_up.wait()
            return Raw()
        return answer(200, completion([11, 12], [-1.0, -2.0]))

    upstream.script = fast_or_never
    async with driven(upstream.url, store__max_bytes=MAX_BYTES) as gateway:
        await gateway.handshake()
        held = (await gateway.submit(0)).json()["request_id"]
        assert (await gateway.poll(held).response()).status == 200
        await gateway.submit(1, prompt={"chunks": [{"tokens": [9, 2, 3]}]})
        await running.wait()
        yield gateway, held


async def test_a_sample_larger_than_the_budget_costs_nobody_a_result(
    upstream: FakeUpstream,
) -> None:
    async with one_held_and_one_running(upstream) as (gateway, held):
        large = {"max_tokens": 60_000}
        assert (await gateway.submit(2, sampling_params=large)).status == 200
        await turns()
        await gateway.advance(LONG_WAIT_S)
        await gateway.advance(LONG_WAIT_S)
        assert (await gateway.poll(held).response()).status == 200


async def test_a_sample_that_was_cancelled_in_line_costs_nobody_a_result(
    upstream: FakeUpstream,
) -> None:
    async with one_held_and_one_running(upstream) as (gateway, held):
        store = gateway.gateway._store
        room = MAX_BYTES - store.charged_bytes
        # Too large by a few bytes, and less than dropping the result would free.
        assert store.results_bytes > 8
        large = {"max_tokens": room // 8 + 1}
        blocked = (await gateway.submit(2, sampling_params=large)).json()["request_id"]
        await turns()
        assert store.find(blocked) is not None
        assert store.counts[State.QUEUED] == 1
        cancelled = await gateway.client.post(
            "/api/v1/cancel_future", {"request_id": blocked}, SDK_HEADERS
        )
        assert cancelled.status == 200
        await gateway.advance(LONG_WAIT_S)
        assert (await gateway.poll(held).response()).status == 200
        assert metric((await gateway.client.get("/metrics")).body, "evicted_for_room_total") == 0
