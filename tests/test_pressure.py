"""Backpressure by bytes: what is admitted never fails for having waited (policies 4)."""

import asyncio
from typing import Any

import pytest

from tests.support.asgi_client import turns
from tests.support.gateway import Driven, driven
from tests.support.held import Held
from tests.support.inprocess import in_process
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import until

# One answer of 1,000 tokens is reserved with 8,000 bytes.
RESERVED = {"max_tokens": 1000}


async def settled(gateway: Driven, request_id: str) -> int:
    return (await gateway.poll(request_id).response()).status


async def test_no_room_keeps_a_sample_in_line_and_says_so(upstream: FakeUpstream) -> None:
    release = asyncio.Event()

    async def held(_: Request) -> Raw:
        await release.wait()
        return answer(200, completion([1, 2], [-1.0, -2.0]))

    upstream.script = held
    async with driven(upstream.url, store__max_bytes=12_000, poll__hold_s=5) as gateway:
        await gateway.handshake()
        ids = [
            (await gateway.submit(n, sampling_params=RESERVED)).json()["request_id"]
            for n in range(3)
        ]
        poll = gateway.poll(ids[1])
        await turns()
        await gateway.advance(6)
        told = (await poll.response()).json()
        assert (told["type"], told["queue_state"]) == ("try_again", "paused_capacity")
        assert len(upstream.requests) <= 1
        release.set()
        assert [await settled(gateway, request_id) for request_id in ids] == [200] * 3


async def test_results_that_nobody_fetches_make_room_after_a_while(upstream: FakeUpstream) -> None:
    async def long(_: Request) -> Raw:
        return answer(200, completion([1] * 1000, [-1.0] * 1000))

    upstream.script = long
    async with driven(upstream.url, store__max_bytes=20_000) as gateway:
        await gateway.handshake()
        first = (await gateway.submit(0, sampling_params=RESERVED)).json()["request_id"]
        assert await settled(gateway, first) == 200  # delivered: the first to go
        second = (await gateway.submit(1, sampling_params=RESERVED)).json()["request_id"]
        assert await settled(gateway, second) == 200
        # A runner holds the line's head back; alone it would always have room.
        hold = asyncio.Event()

        async def held(_: Request) -> Raw:
            await hold.wait()
            return answer(200, completion([1, 2], [-1.0, -2.0]))

        upstream.script = held
        small = (await gateway.submit(2)).json()["request_id"]
        waiting = (await gateway.submit(3, sampling_params=RESERVED)).json()["request_id"]
        await gateway.advance(29)
        assert await settled(gateway, first) == 200  # delivered anew: now the second is the oldest
        await gateway.advance(2)
        assert await settled(gateway, first) == 200
        assert await settled(gateway, second) == 410
        hold.set()
        assert await settled(gateway, small) == 200
        assert await settled(gateway, waiting) == 200
        metrics = (await gateway.client.get("/metrics")).body.decode()
        assert "asgi_gateway_evicted_for_room_total 1" in metrics


async def test_full_by_bytes_is_429_with_retry_after(upstream: FakeUpstream) -> None:
    async def never(_: Request) -> Raw:
        await asyncio.sleep(3600)
        return Raw()

    upstream.script = never
    async with driven(upstream.url, store__max_bytes=300) as gateway:
        await gateway.handshake()
        assert (await gateway.submit(0)).status == 200
        refused = await gateway.submit(1)
        assert (refused.status, refused.headers[b"retry-after"]) == (429, b"1")
        assert "store.max_bytes" in refused.json()["detail"]


async def test_fetched_results_make_room_for_submits_too(upstream: FakeUpstream) -> None:
    async def long(_: Request) -> Raw:
        return answer(200, completion([1] * 1000, [-1.0] * 1000))

    upstream.script = long
    async with driven(upstream.url, store__max_bytes=20_000) as gateway:
        await gateway.handshake()
        for seq_id in range(3):  # the third is the only one running, so it may exceed the budget
            accepted = await gateway.submit(seq_id, sampling_params=RESERVED)
            assert await settled(gateway, accepted.json()["request_id"]) == 200
        assert (await gateway.submit(3)).status == 429
        for _ in range(40):  # as the SDK does: it repeats a 429 every second or so
            await gateway.advance(1)
            if (await gateway.submit(3)).status == 200:
                return
        raise AssertionError("refused for 40 s, and all that is held was delivered")


async def test_those_behind_the_head_of_the_line_do_not_wait_as_long_again(
    upstream: FakeUpstream,
) -> None:
    async def long(_: Request) -> Raw:
        return answer(200, completion([1] * 1000, [-1.0] * 1000))

    hold = asyncio.Event()

    async def held(_: Request) -> Raw:
        await hold.wait()
        return answer(200, completion([1, 2], [-1.0, -2.0]))

    upstream.script = long
    async with driven(upstream.url, store__max_bytes=58_000) as gateway:
        await gateway.handshake()
        for seq_id in range(6):
            accepted = await gateway.submit(seq_id, sampling_params=RESERVED)
            assert await settled(gateway, accepted.json()["request_id"]) == 200
        upstream.script = held
        ids = [
            (await gateway.submit(n, sampling_params=RESERVED)).json()["request_id"]
            for n in range(10, 14)
        ]
        await until(lambda: len(upstream.requests) == 7)  # one that runs alone always may
        await gateway.advance(29)
        assert len(upstream.requests) == 7
        for _ in range(20):
            await gateway.advance(0.1)
        await until(lambda: len(upstream.requests) == 10)
        hold.set()
        assert [await settled(gateway, request_id) for request_id in ids] == [200] * 4


@pytest.mark.usefixtures("each_transport")
@pytest.mark.parametrize("how", ["finish", "close"])
async def test_what_waits_is_not_sent_in_the_place_of_what_ends(
    upstream: FakeUpstream, how: str
) -> None:
    """A sample of an ended session that is begun only to be given up is work for nobody."""
    held = Held(upstream)
    async with driven(upstream.url, upstream__max_connections=4) as gateway:
        await gateway.handshake()
        for seq_id in range(600):
            assert (await gateway.submit(seq_id)).status == 200
        await held.running(4)
        if how == "finish":
            path = f"/api/v1/sessions/{gateway.session_id}/finish"
            assert (await gateway.client.post(path, {"reason": {"type": "success"}})).status == 200
            await until(lambda: not len(gateway.gateway._store))
        else:
            await gateway.gateway.close()
        assert gateway.gateway._sampling._dispatch.running == 0
        assert gateway.gateway.fleet.upstreams[0].requests["cancelled"] == 4
        assert len(upstream.requests) == 4


async def test_a_result_that_its_client_is_about_to_fetch_makes_no_room() -> None:
    """Full by bytes for minutes, as while long samples run; each result is fetched in 0.3 s."""
    flags: dict[str, Any] = {"store__max_bytes": 80_000, "session__timeout_s": 1e6}
    async with in_process(**flags) as (gateway, upstream):
        await turns()
        await gateway.handshake()
        for seq_id in range(30):
            assert (await gateway.submit(seq_id, sampling_params=RESERVED)).status == 200
        await turns()
        for _ in range(40):
            await gateway.advance(1)
        body = completion(list(range(10, 1010)), [-1.0] * 1000)
        fetched, settled_ids = 0, list[str]()
        for _ in range(60):
            for sent in upstream.under_way[:1]:
                sent.answer(200, body)
                settled_ids.append(sent.request_id)
            for _ in range(3):
                await gateway.advance(0.1)
            for request_id in settled_ids:
                assert await settled(gateway, request_id) == 200
                fetched += 1
                gateway.gateway._store.acknowledge([request_id], "default")
            settled_ids.clear()
        assert fetched == 30
