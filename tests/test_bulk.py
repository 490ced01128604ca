"""What one request asks of very many samples: all done at its answer, little of it in each turn."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from asgi_gateway import bulk
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import State
from tests.store.records import accepted, brought_to, new_store
from tests.support.asgi_client import Response, turns
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion

PER_TURN, MANY = 8, 50


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> "Counter[int]":
    """Evictions by turn of the loop, and a budget that is small against MANY."""
    monkeypatch.setattr(bulk, "WORK_PER_TURN", PER_TURN)
    evict, done, turn = MemoryStore.evict, Counter[int](), 0

    def next_turn() -> None:
        nonlocal turn
        turn += 1

    def counted(store: MemoryStore, record: Record, *, told: bool = True) -> bool:
        if turn not in done:
            asyncio.get_running_loop().call_soon(next_turn)
        done[turn] += 1
        return evict(store, record, told=told)

    monkeypatch.setattr(MemoryStore, "evict", counted)
    return done


async def one_token(_: Request) -> Raw:
    return answer(200, completion([5], [-0.5]))


async def poll(gateway: Driven, cursor: int = 0, acknowledged: list[str] | None = None) -> Any:
    response = await gateway.client.post(
        "/api/v1/retrieve_futures",
        {
            "target": {"sampling_session_id": gateway.sampling_session_id},
            "prev_cursor": cursor,
            "timeout": 0,
            "retrieved_request_ids": acknowledged or [],
        },
        SDK_HEADERS,
    )
    assert response.status == 200, response.body
    return msgspec.json.decode(response.body)


async def settled(gateway: Driven, count: int) -> list[str]:
    """So many samples, all with their result."""
    ids = [(await gateway.submit(number)).json()["request_id"] for number in range(count)]
    answers: list[Response] = [await gateway.poll(request_id).response() for request_id in ids]
    assert {one.status for one in answers} == {200}
    return ids


def spread(work: "Counter[int]") -> bool:
    """Whether all was done, a budget's worth in each turn."""
    return work.total() == MANY and max(work.values()) <= PER_TURN


async def test_what_was_acknowledged_is_gone_at_the_answer(
    upstream: FakeUpstream, work: "Counter[int]"
) -> None:
    upstream.script = one_token
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        ids = await settled(gateway, MANY)
        await poll(gateway, acknowledged=ids)
        assert len(gateway.gateway._store) == 0
        assert spread(work)
        assert (await gateway.poll(ids[-1]).response()).status == 410


async def test_a_session_that_is_finished_is_gone_at_the_answer(
    upstream: FakeUpstream, work: "Counter[int]"
) -> None:
    upstream.script = one_token
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        ids = await settled(gateway, MANY)
        path = f"/api/v1/sessions/{gateway.session_id}/finish"
        assert (await gateway.client.post(path)).status == 200
        assert len(gateway.gateway._store) == 0
        assert spread(work)
        assert (await gateway.poll(ids[0]).response()).status == 410


async def test_a_session_that_lapses_ends_soon_and_spares_what_comes_after(
    upstream: FakeUpstream, work: "Counter[int]"
) -> None:
    upstream.script = one_token
    async with driven(upstream.url, session__timeout_s=100) as gateway:
        await gateway.handshake()
        ids = await settled(gateway, MANY)
        gateway.clock.advance(101)
        gateway.gateway.tick()
        await asyncio.sleep(0)
        assert 0 < len(gateway.gateway._store) < MANY
        late = (await gateway.submit(MANY)).json()["request_id"]
        await turns(10 * MANY // PER_TURN)
        assert len(gateway.gateway._store) <= 1
        assert spread(work)
        assert (await gateway.poll(late).response()).status == 200
        assert (await gateway.poll(ids[-1]).response()).status == 410


async def test_room_is_made_over_several_ticks(work: "Counter[int]") -> None:
    store = new_store(max_bytes=MANY * 7 + 250)
    results = [brought_to(store, State.SUCCEEDED, number) for number in range(MANY)]
    running = brought_to(store, State.RUNNING, MANY)
    queued = accepted(store, MANY + 1, body=b"", reserve=110 + 20 * 7)
    ticks = bulk.Bulk(store, lambda record, told: None)
    dropped = [ticks.make_room(queued), *(ticks.make_room(None) for _ in range(4))]
    assert dropped == [PER_TURN, PER_TURN, 4, 0, 0]
    assert store.has_room(queued)
    assert running.state is State.RUNNING
    assert [record.state for record in results[20:]] == [State.SUCCEEDED] * (MANY - 20)


async def test_room_is_made_no_more_for_one_that_started(work: "Counter[int]") -> None:
    store = new_store(max_bytes=MANY * 7 + 250)
    for number in range(MANY):
        brought_to(store, State.SUCCEEDED, number)
    brought_to(store, State.RUNNING, MANY)
    queued = accepted(store, MANY + 1, body=b"", reserve=110 + 20 * 7)
    ticks = bulk.Bulk(store, lambda record, told: None)
    assert ticks.make_room(queued) == PER_TURN
    store.cancel(queued, 0.0)
    assert ticks.make_room(None) == 0


async def test_a_first_poll_of_very_many_looks_at_some_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that settled before it, those that do while it looks, each once."""
    monkeypatch.setattr("asgi_gateway.store.targets.LOOKED_AT_PER_PAGE", PER_TURN)
    store = new_store()
    for number in range(MANY):
        accepted(store, number)  # in line: looked at in vain
    early = [brought_to(store, State.SUCCEEDED, MANY + number) for number in range(MANY)]
    late = brought_to(store, State.RUNNING, 3 * MANY)
    find = partial(store.targets.page, "sampler-1", 0, limit=2 * MANY)
    pages = [find(prev_cursor=0) for _ in range(MANY // PER_TURN)]
    assert all(page.more and not page.completions for page in pages)
    store.succeed(late, b"r", 1.0)
    store.targets.report(late)
    found = [record.request_id for record in (late, *early)]
    for _ in range(2 * MANY // PER_TURN + 2):
        page = find(prev_cursor=0)
        told = [completion.request_id for completion in page.completions]
        assert told == found[: len(told)]
        assert not page.more
    assert told == found
