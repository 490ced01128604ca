"""Batched polls: the completion log, acknowledgements, holds, and what a poller must never miss."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asgi_gateway.store.completions import CompletionLog
from tests.support.asgi_client import Connection, turns
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion


def poll(
    gateway: Driven,
    prev_cursor: int = 0,
    *,
    clone: int = 0,
    timeout: float | None = None,
    acknowledged: list[str] | None = None,
    target: str | None = None,
) -> Connection:
    body: dict[str, Any] = {
        "target": {
            "type": "sampling_session",
            "sampling_session_id": target or gateway.sampling_session_id,
            "cloned_sampler_id": clone,
        },
        "prev_cursor": prev_cursor,
        "retrieved_request_ids": acknowledged or [],
    }
    if timeout is not None:
        body["timeout"] = timeout
    return gateway.client.start("POST", "/api/v1/retrieve_futures", body, SDK_HEADERS)


async def submitted(gateway: Driven, *seq_ids: int) -> list[str]:
    return [(await gateway.submit(seq_id)).json()["request_id"] for seq_id in seq_ids]


async def finished(gateway: Driven, request_id: str) -> None:
    """Wait until a sample has its outcome; the scripted upstream answers on a real socket."""
    response = await gateway.poll(request_id).response()
    assert response.status == 200, response.body


async def test_completions_carry_sizes_and_a_cursor(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        ids = await submitted(gateway, 0, 1)
        sizes = [len((await gateway.poll(i).response()).body) for i in ids]
        page = (await poll(gateway).response()).json()
        assert {c["request_id"] for c in page["completions"]} == set(ids)
        assert all(c["state"] == "finished" for c in page["completions"])
        assert [c["response_payload_uncompressed_size"] for c in page["completions"]] == sizes
        again = (await poll(gateway, page["cursor"], timeout=0).response()).json()
        assert again == {"completions": [], "cursor": page["cursor"]}


async def test_a_lost_answer_is_reported_again(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        (request_id,) = await submitted(gateway, 0)
        await finished(gateway, request_id)
        first = (await poll(gateway, 0).response()).json()
        assert (await poll(gateway, 0).response()).json() == first


async def test_a_held_poll_gathers_completions(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        held = poll(gateway)
        await turns()
        assert not held.answered
        ids = await submitted(gateway, *range(20))
        page = (await held.response()).json()
        seen = [c["request_id"] for c in page["completions"]]
        while len(seen) < 20:
            page = (await poll(gateway, page["cursor"]).response()).json()
            seen += [c["request_id"] for c in page["completions"]]
        assert sorted(seen) == sorted(ids)


async def test_an_empty_poll_is_held_and_then_answered_empty(upstream: FakeUpstream) -> None:
    async with driven(upstream.url, poll__hold_s=30) as gateway:
        await gateway.handshake()
        held, short = poll(gateway, 7), poll(gateway, 7, timeout=5)
        await turns()
        await gateway.advance(4.9)
        assert not short.answered
        await gateway.advance(0.2)
        assert (await short.response()).json()["completions"] == []
        await gateway.advance(24.8)
        assert not held.answered
        await gateway.advance(0.2)
        assert (await held.response()).json()["completions"] == []


async def test_clones_have_logs_of_their_own(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        original, cloned = await submitted(gateway, 3, 5_000_000_007)
        for request_id in (original, cloned):
            await finished(gateway, request_id)
        (mine,) = (await poll(gateway).response()).json()["completions"]
        (theirs,) = (await poll(gateway, clone=5).response()).json()["completions"]
        assert (mine["request_id"], theirs["request_id"]) == (original, cloned)


async def test_an_acknowledgement_frees_the_payload_at_once(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        ids = await submitted(gateway, 0, 1)
        for request_id in ids:
            await finished(gateway, request_id)
        acknowledged = poll(gateway, timeout=0, acknowledged=[ids[0], "never-issued"])
        assert (await acknowledged.response()).status == 200
        assert (await gateway.poll(ids[0]).response()).status == 410
        assert (await gateway.poll(ids[1]).response()).status == 200
        repeated = await poll(gateway, timeout=0, acknowledged=ids).response()
        assert repeated.status == 200
        assert (await gateway.poll(ids[1]).response()).status == 410


async def test_an_interrupted_sample_is_reported_failed(upstream: FakeUpstream) -> None:
    async def reset(_: Request) -> Raw:
        return Raw(b"", "reset")

    upstream.script = reset
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        before = poll(gateway)
        await turns()
        (request_id,) = await submitted(gateway, 0)
        page = (await before.response()).json()
        assert page["completions"] == [{"state": "failed", "request_id": request_id}]
        assert (await gateway.poll(request_id).response()).status == 410


async def test_a_first_poll_hears_of_what_was_lost_before_it(upstream: FakeUpstream) -> None:
    async def reset(_: Request) -> Raw:
        return Raw(b"", "reset")

    upstream.script = reset
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        (request_id,) = await submitted(gateway, 0)
        for _ in range(100):
            page = (await poll(gateway, timeout=0).response()).json()
            if page["completions"]:
                break
            await asyncio.sleep(0.01)
        assert page["completions"] == [{"state": "failed", "request_id": request_id}]


async def test_a_failed_sample_stays_fetchable(upstream: FakeUpstream) -> None:
    async def refuse(_: Request) -> Raw:
        return answer(400, {"error": {"message": "no", "type": "BadRequestError"}})

    upstream.script = refuse
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        (request_id,) = await submitted(gateway, 0)
        page = (await poll(gateway).response()).json()
        assert page["completions"] == [{"state": "failed", "request_id": request_id}]
        failure = (await gateway.poll(request_id).response()).json()
        assert failure["category"] == "user"
        assert "no" in failure["error"]


async def test_a_finished_session_is_never_404(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        target = await gateway.handshake()
        await gateway.client.post(
            f"/api/v1/sessions/{gateway.session_id}/finish", {"reason": {"type": "success"}}
        )
        gone = poll(gateway, 5, timeout=0, target=target)
        assert (await gone.response()).json() == {"completions": [], "cursor": 5}
        unknown = await poll(gateway, timeout=0, target="sampler-of-somebody").response()
        assert unknown.status == 404


async def test_a_poll_that_is_held_as_its_session_finishes_leaves_nothing(
    upstream: FakeUpstream,
) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        held = poll(gateway, 7)
        await turns()
        finish = f"/api/v1/sessions/{gateway.session_id}/finish"
        await gateway.client.post(finish, {"reason": {"type": "success"}})
        await gateway.advance(31)
        assert (await held.response()).json() == {"completions": [], "cursor": 7}
        assert len(gateway.gateway._store.targets) == 0


@pytest.mark.parametrize("prev_cursor", [0, 3, 2**40, 2**60, -1])
async def test_after_a_restart_open_samples_are_reported_whatever_the_cursor(
    upstream: FakeUpstream, tmp_path: Path, prev_cursor: int
) -> None:
    async def never(_: Request) -> Raw:
        await asyncio.sleep(3600)
        return Raw()

    upstream.script = never
    async with driven(upstream.url, state__dir=str(tmp_path)) as gateway:
        target = await gateway.handshake()
        ids = await submitted(gateway, 0, 1)
    async with driven(upstream.url, state__dir=str(tmp_path)) as gateway:
        page = (await poll(gateway, prev_cursor, target=target).response()).json()
        assert [c["request_id"] for c in page["completions"]] == ids
        assert {c["state"] for c in page["completions"]} == {"failed"}
        assert page["cursor"] < 2**53
        assert (await gateway.poll(ids[0]).response()).status == 410


async def test_a_repeated_submit_after_a_restart_runs_under_the_same_id(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    async def never(_: Request) -> Raw:
        await asyncio.sleep(3600)
        return Raw()

    script, upstream.script = upstream.script, never
    async with driven(upstream.url, state__dir=str(tmp_path)) as gateway:
        target = await gateway.handshake()
        first = (await gateway.submit(2**62)).json()
    upstream.script = script
    async with driven(upstream.url, state__dir=str(tmp_path)) as gateway:
        gateway.sampling_session_id = target
        other = await gateway.submit(2**62, sampling_params={"max_tokens": 3})
        assert other.status == 422
        assert (await gateway.submit(2**62)).json() == first
        assert (await gateway.poll(first["request_id"]).response()).status == 200


async def test_config_switches_batched_polls_on_where_state_is_kept(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    kept, flag = {"state__dir": str(tmp_path)}, "client__sample_use_retrieve_futures"
    for flags, expected in (
        ({}, False),
        ({flag: True}, False),
        (kept, True),
        ({**kept, flag: True}, True),
        ({**kept, flag: False}, False),
    ):
        async with driven(upstream.url, **flags) as gateway:
            config = (await gateway.client.post("/api/v1/client/config", b"{}")).json()
            assert config["sample_use_retrieve_futures"] is expected


async def test_a_lapsed_session_is_told_when_it_comes_back(upstream: FakeUpstream) -> None:
    async def never(_: Request) -> Raw:
        await asyncio.sleep(3600)
        return Raw()

    upstream.script = never
    async with driven(upstream.url, session__timeout_s=300) as gateway:
        await gateway.handshake()
        (request_id,) = await submitted(gateway, 0)
        held = poll(gateway)
        await turns()
        await gateway.advance(301)
        page = (await held.response()).json()
        assert page["completions"] == [{"state": "failed", "request_id": request_id}]


def test_the_log_drops_what_was_seen_and_repeats_what_was_not() -> None:
    log: CompletionLog[str] = CompletionLog(100)
    for number in range(5):
        log.append(str(number))
    oldest, cursor = log.oldest(2)
    assert (oldest, cursor) == (["0", "1"], 102)
    log.seen(cursor)
    rest = log.oldest(10)
    assert rest == (["2", "3", "4"], 105)
    for foreign in (0, 99, 106, 2**60):
        log.seen(foreign)
        assert log.oldest(10) == rest


async def test_the_result_is_what_a_single_poll_gives(upstream: FakeUpstream) -> None:
    async def one(_: Request) -> Raw:
        return answer(200, completion([5], [-0.5]))

    upstream.script = one
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        (request_id,) = await submitted(gateway, 0)
        page = msgspec.json.decode((await poll(gateway).response()).body)
        result = await gateway.poll(request_id).response()
        assert page["completions"][0]["response_payload_uncompressed_size"] == len(result.body)
