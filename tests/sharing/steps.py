"""What tests of several gateways do again and again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.support.asgi_client import Response
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.wire import SDK_HEADERS, Remote, poll, wire

API = "/api/v1"
FINISH = {"reason": {"type": "success"}}


class Holding:
    """An upstream that answers when it is let go; of prompts that begin alike all at once."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self.upstream = upstream
        self.failing = False
        self._go = asyncio.Event()
        upstream.script = self

    async def __call__(self, request: Request) -> Raw:
        await self._go.wait()
        if self.failing:
            return answer(400, {"error": {"message": "no such thing", "code": 400}})
        prompt = request.json()["prompt"]
        tokens = [int(token) for token in prompt[-2:]]
        body = completion(tokens, [-1.0] * len(tokens), n=request.json()["n"])
        return answer(200, body)

    def go(self) -> None:
        self._go.set()

    def hold(self) -> None:
        self._go.clear()

    @property
    def ids(self) -> list[str]:
        """Of the requests that came."""
        return [request.request_id for request in self.upstream.requests]


def post(remote: Remote, path: str, body: object) -> "asyncio.Task[Response]":
    """A request on its way."""
    return asyncio.ensure_future(remote.post(f"{API}/{path}", body))


@contextlib.asynccontextmanager
async def parked(remote: Remote, request_id: str) -> AsyncIterator["asyncio.Task[Response]"]:
    """A poll that stands; its answer."""
    before = (await remote.metrics())["polls_inflight"]
    task = asyncio.ensure_future(remote.poll(request_id))
    await remote.until(lambda now: now["polls_inflight"] > before or task.done())
    assert not task.done(), task.result()
    try:
        yield task
    finally:
        task.cancel()


async def as_json(remote: Remote, request_id: str, **fields: Any) -> Response:
    """A poll of an SDK below 0.25."""
    body = {"request_id": request_id, **fields}
    return await remote.post(f"{API}/retrieve_future", body)


async def finished(remote: Remote) -> Response:
    return await remote.post(f"{API}/sessions/{remote.session_id}/finish", FINISH)


async def beaten(remote: Remote) -> int:
    body = {"session_id": remote.session_id}
    return (await remote.post(f"{API}/session_heartbeat", body)).status


async def cancelled(remote: Remote, request_id: str) -> int:
    return (await remote.post(f"{API}/cancel_future", {"request_id": request_id})).status


async def joined(remote: Remote) -> int:
    body = {"sampling_session_id": remote.sampling_session_id}
    number: int = (await remote.post(f"{API}/join_sampling_session", body)).json()["client_counter"]
    return number


def batched(
    remote: Remote,
    cursor: int = 0,
    *,
    clone: int = 0,
    timeout: float | None = None,
    seen: list[str] | None = None,
) -> "asyncio.Task[Response]":
    """A batched poll. seen: ids whose results it acknowledges."""
    target = {
        "type": "sampling_session",
        "sampling_session_id": remote.sampling_session_id,
        "cloned_sampler_id": clone,
    }
    body: dict[str, Any] = {"target": target, "prev_cursor": cursor}
    body["retrieved_request_ids"] = seen or []
    if timeout is not None:
        body["timeout"] = timeout
    return post(remote, "retrieve_futures", body)


async def page(remote: Remote, cursor: int = 0, **more: Any) -> tuple[dict[str, str], int]:
    """What a batched poll was told, id -> state, and the cursor."""
    told = (await batched(remote, cursor, **more)).json()
    return statuses(told), told["cursor"]


def statuses(told: dict[str, Any]) -> dict[str, str]:
    return {one["request_id"]: one["state"] for one in told["completions"]}


async def pages(remote: Remote, ids: set[str], cursor: int = 0) -> dict[str, str]:
    """What is told until all of these were."""
    found: dict[str, str] = {}
    async with asyncio.timeout(30):
        while not ids <= found.keys():
            told, cursor = await page(remote, cursor, timeout=3)
            found |= told
    return found


async def until_status(remote: Remote, request_id: str, within_s: float = 20.0) -> int:
    """Of polls until one is not 408."""
    async with asyncio.timeout(within_s):
        while (status := (await remote.poll(request_id)).status) == 408:
            pass
    return status


async def polled_as(remote: Remote, request_id: str, key: str) -> Response:
    body, _ = poll(request_id)
    async with wire(remote.port) as connection:
        headers = {**SDK_HEADERS, "X-API-Key": key}
        return await connection.ask("POST", f"{API}/retrieve_future", body, headers)
