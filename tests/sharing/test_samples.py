"""A sample that one gateway accepted, at the other: polled, cancelled, submitted again."""

import asyncio

import pytest

from tests.sharing.steps import (
    API,
    Holding,
    as_json,
    batched,
    cancelled,
    joined,
    page,
    pages,
    parked,
    post,
    statuses,
)
from tests.support.sharing import Pair
from tests.support.upstream import FakeUpstream, answer, completion
from tests.support.waiting import event, until
from tests.support.wire import Remote

pytestmark = [pytest.mark.servers, pytest.mark.system]

CLONE = 10**9


# --- polls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["protobuf", "json"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_result_is_the_same_at_both(
    pair: Pair, upstream: FakeUpstream, when: str, kind: str
) -> None:
    """when: the poll comes, before or after settlement."""
    held, (a, b) = Holding(upstream), await pair.clients()
    request_id = await a.submit([5, 6, 7])
    ask = Remote.poll if kind == "protobuf" else as_json
    if when == "before":
        async with parked(b, request_id) as standing:
            polls = [asyncio.ensure_future(ask(remote, request_id)) for remote in (b, b, a)]
            await b.until(lambda now: now["polls_inflight"] >= 3)
            held.go()
            answers = [await one for one in polls]
            assert (await standing).status == 200
    else:
        held.go()
        assert (await a.poll(request_id)).status == 200
        answers = [await ask(remote, request_id) for remote in (b, a, b)]
    assert [one.status for one in answers] == [200] * 3
    assert len({one.body for one in answers}) == 1
    if kind == "json":
        assert answers[0].json()["sequences"][0]["tokens"] == [6, 7]
    assert held.ids == [request_id]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_failure_is_told_at_both(pair: Pair, upstream: FakeUpstream, when: str) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    held.failing = True
    request_id = await a.submit()
    if when == "before":
        async with parked(b, request_id) as standing:
            held.go()
            told = (await standing).json()
    else:
        held.go()
        assert (await a.poll(request_id)).status == 200
        told = (await b.poll(request_id)).json()
    assert "no such thing" in told["error"]
    assert told["category"] == "user"
    assert told == (await a.poll(request_id)).json()
    assert statuses((await batched(b)).json()) == {request_id: "failed"}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_interrupted_sample_is_410_at_both(
    pair: Pair, upstream: FakeUpstream, when: str
) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    request_id = await a.submit()
    await until(lambda: held.ids == [request_id])
    writer = upstream.requests[0].writer
    if when == "before":
        async with parked(b, request_id) as standing:
            writer.transport.abort()
            assert (await standing).status == 410
    else:
        writer.transport.abort()
        assert statuses((await batched(b, timeout=5)).json()) == {request_id: "failed"}
        assert (await b.poll(request_id)).status == 410
    assert [(await remote.poll(request_id)).status for remote in (a, b)] == [410, 410]


async def test_a_poll_is_held_as_long_as_at_home(pair: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    request_id = await a.submit()
    began = asyncio.get_running_loop().time()
    told = await b.poll(request_id)
    assert told.status == 408
    assert told.json()["request_id"] == request_id
    assert asyncio.get_running_loop().time() - began > 7.5
    held.go()
    assert (await b.poll(request_id)).status == 200


async def test_a_large_result_is_announced_and_fetched(pair: Pair, upstream: FakeUpstream) -> None:
    """Above poll.inline_bytes its size is told first."""
    (a, b), count = await pair.clients(), 1_200_000

    async def large(_: object) -> object:
        return answer(200, completion(list(range(count)), [-1.0] * count))

    upstream.script = large  # type: ignore[assignment]
    request_id = await a.submit(sampling_params={"max_tokens": 50_000})
    done, _ = await page(b, timeout=8)
    assert done == {request_id: "finished"}
    announced = await as_json(b, request_id, allow_metadata_only=True)
    assert announced.json()["status"] == "complete_metadata"
    whole = await as_json(b, request_id)
    assert len(whole.body) == announced.json()["response_payload_size"]
    assert len(whole.json()["sequences"][0]["tokens"]) == count
    assert (await a.poll(request_id)).body == (await b.poll(request_id)).body


async def test_ids_that_nobody_issued_are_404_at_both(pair: Pair, upstream: FakeUpstream) -> None:
    a, b = await pair.clients()
    request_id = await a.submit()
    forged = request_id[:-1] + ("A" if request_id[-1] != "A" else "B")
    unknown = f"0123456789-400-{'x' * 16}"
    for remote in (a, b):
        for one in (forged, unknown, "never-issued", "x y"):
            assert (await remote.poll(one)).status == 404, one
            body = {"request_id": one}
            assert (await remote.post(f"{API}/cancel_future", body)).status == 404, one


# --- submits --------------------------------------------------------------------------------------


async def test_a_submit_to_both_at_once_runs_once(pair: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    ids = set()
    for _ in range(10):
        body = a.sample([1, 2, 3])
        told = [post(remote, "asample", body) for remote in (a, b, b, a)]
        answers = {(await one).body for one in told}
        assert len(answers) == 1, answers
        ids.add((await told[0]).json()["request_id"])
    held.go()
    assert [(await remote.poll(one)).status for one in ids for remote in (a, b)] == [200] * 20
    assert sorted(held.ids) == sorted(ids)
    # Late ones too, of what has settled.
    assert (await b.post(f"{API}/asample", body)).body in answers
    assert len(held.ids) == 10
    for remote in (a, b):
        await remote.until(lambda now: now["samples_inflight"] == 0)


async def test_another_body_under_the_same_number_is_422(
    pair: Pair, upstream: FakeUpstream
) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    body = a.sample([1, 2, 3])
    other = {**body, "prompt": {"chunks": [{"type": "encoded_text", "tokens": [4]}]}}
    told = sorted(
        [(await one).status for one in (post(a, "asample", body), post(b, "asample", other))]
    )
    assert told == [200, 422]
    again = await b.post(f"{API}/asample", {**body, "sampling_params": {"max_tokens": 9}})
    assert again.status == 422
    assert str(body["seq_id"]) in again.json()["detail"]
    held.go()
    await until(lambda: len(held.ids) == 1)


async def test_a_lost_sample_is_taken_in_again_at_the_other_under_its_id(
    pair: Pair, upstream: FakeUpstream
) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    body = a.sample()
    request_id = (await a.post(f"{API}/asample", body)).json()["request_id"]
    await until(lambda: held.ids == [request_id])
    upstream.requests[0].writer.transport.abort()
    await a.until(lambda now: now["samples_inflight"] == 0)
    again = await b.post(f"{API}/asample", body)
    assert again.json()["request_id"] == request_id
    await until(lambda: held.ids == [request_id] * 2)
    held.go()
    assert [(await remote.poll(request_id)).status for remote in (b, a)] == [200, 200]


# --- batched polls --------------------------------------------------------------------------------


async def test_batched_polls_at_both_hear_of_all(pair: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    standing = [batched(remote) for remote in (a, b)]
    for remote in (a, b):
        await remote.polls_parked(1)
    ids = {await remote.submit([n]) for n in range(3) for remote in (a, b)}
    held.go()
    for one in standing:
        assert statuses((await one).json()).items() <= dict.fromkeys(ids, "finished").items()
        assert (await one).json()["completions"]
    for remote in (a, b):
        assert await pages(remote, ids) == dict.fromkeys(ids, "finished")


async def test_cursors_and_acknowledgements_hold_across(pair: Pair, upstream: FakeUpstream) -> None:
    a, b = await pair.clients()
    first = await a.submit()
    told, cursor = await page(b, timeout=5)
    assert told == {first: "finished"}
    second = await b.submit()
    told, above = await page(a, cursor, timeout=5)
    assert told == {second: "finished"}
    assert above > cursor
    # A lost answer costs nothing, wherever it is asked again.
    assert await page(b, cursor, timeout=5) == ({second: "finished"}, above)
    assert [(await remote.poll(first)).status for remote in (a, b)] == [200, 200]
    # Acknowledged at the one that did not run it; it is gone everywhere.
    assert await page(b, above, timeout=0, seen=[first]) == ({}, above)
    assert await page(a, above, timeout=0, seen=[second]) == ({}, above)
    assert not [key for key in pair.held_keys() if first in key or second in key]
    # Whoever ran it may have it for a moment longer.
    assert [(await b.poll(first)).status, (await a.poll(second)).status] == [410, 410]
    for remote in (a, b):
        assert await page(remote, above, timeout=0, seen=[first, second]) == ({}, above)


async def test_clones_that_join_get_numbers_and_logs_of_their_own(
    pair: Pair, upstream: FakeUpstream
) -> None:
    a, b = await pair.clients()
    numbers = [await one for one in [asyncio.ensure_future(joined(r)) for r in (a, b) * 5]]
    assert sorted(numbers) == list(range(1, 11))
    ids = {}
    for remote, clone in ((a, 3), (b, 4)):
        ids[clone] = await remote.submit(seq_id=clone * CLONE + 1)
    assert (await page(a, clone=4, timeout=5))[0] == {ids[4]: "finished"}
    assert (await page(b, clone=3, timeout=5))[0] == {ids[3]: "finished"}
    assert (await page(b, timeout=0))[0] == {}


# --- cancel ---------------------------------------------------------------------------------------


async def test_a_cancel_at_the_other_ends_the_upstream_request(
    pair: Pair, upstream: FakeUpstream
) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    runs, other = await a.submit(), await a.submit()
    await until(lambda: set(held.ids) == {runs, other})
    async with parked(a, runs) as here, parked(b, runs) as there:
        assert await cancelled(b, runs) == 200
        (request,) = (one for one in upstream.requests if one.request_id == runs)
        await event(request.hung_up)
        for one in (here, there):
            told = await one
            assert told.status == 200
            assert "cancelled" in told.json()["error"]
    assert [await cancelled(remote, runs) for remote in (a, b)] == [200, 200]
    assert statuses((await batched(b, timeout=5)).json()) == {runs: "failed"}
    held.go()
    assert (await b.poll(other)).status == 200
    # What has its result keeps it.
    assert await cancelled(b, other) == 200
    assert (await b.poll(other)).status == 200
