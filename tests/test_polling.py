"""Polling (policies 5): holds, what is said meanwhile, and what counts as delivered."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asgi_gateway import delivery
from asgi_gateway.asgi import Call, Receive, read_body
from asgi_gateway.caller import DEFAULT
from asgi_gateway.errors import NotFound
from asgi_gateway.peer import Peer
from tests.support.asgi_client import Connection, Response, turns
from tests.support.gateway import Driven, driven
from tests.support.held import Held, metric
from tests.support.receives import (
    GranianReceive,
    HypercornReceive,
    UvicornCycle,
    UvicornReceive,
)
from tests.support.upstream import FakeUpstream, Raw, Request, answer
from tests.support.waiting import until

HOLD_S, UNDELIVERED_S, DELIVERED_S = 30, 2048, 300


@contextlib.asynccontextmanager
async def ready(upstream: FakeUpstream, **flags: Any) -> AsyncIterator[Driven]:
    # Sessions that outlive every clock here: it is results that end, not their session.
    async with driven(upstream.url, session__timeout_s=1e6, **flags) as gateway:
        await gateway.handshake()
        yield gateway


async def submitted(gateway: Driven, seq_id: int = 0) -> str:
    promise = await gateway.submit(seq_id)
    assert promise.status == 200, promise.body
    request_id: str = promise.json()["request_id"]
    return request_id


async def parked(gateway: Driven, request_id: str) -> Connection:
    poll = gateway.poll(request_id)
    await turns()
    assert not poll.answered
    return poll


async def delivered(gateway: Driven, request_id: str) -> Response:
    response = await gateway.poll(request_id).response()
    assert response.status == 200, response.body
    return response


async def status(gateway: Driven, request_id: str) -> int:
    """What a poll is answered at once; it delivers nothing, as its client has left."""
    poll = gateway.poll(request_id)
    poll.hang_up()
    return (await poll.response()).status


async def polls(gateway: Driven, result: str) -> float:
    return metric((await gateway.client.get("/metrics")).body, "polls_total", result=result)


def store(gateway: Driven) -> Any:
    return gateway.gateway._store


# --- holding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hold_s", [HOLD_S, 4])
async def test_a_poll_is_held_exactly_its_time(upstream: FakeUpstream, hold_s: int) -> None:
    Held(upstream)
    async with ready(upstream, poll__hold_s=hold_s) as gateway:
        request_id = await submitted(gateway)
        poll = await parked(gateway, request_id)
        await gateway.advance(hold_s - 0.25)
        early = poll.answered
        await gateway.advance(0.25)
        assert (early, poll.answered) == (False, True)
        response = await poll.response()
    assert response.status == 408
    assert response.headers[b"content-type"] == b"application/json"
    assert response.json()["type"] == "try_again"
    assert response.json()["request_id"] == request_id


async def test_each_poll_is_held_from_its_own_beginning(upstream: FakeUpstream) -> None:
    Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        first = await parked(gateway, request_id)
        await gateway.advance(10)
        second = await parked(gateway, request_id)
        await gateway.advance(HOLD_S - 10)
        assert (first.answered, second.answered) == (True, False)
        await gateway.advance(10)
        assert second.answered


async def test_the_hold_leaves_nothing_behind(upstream: FakeUpstream) -> None:
    Held(upstream)
    async with ready(upstream) as gateway:
        poll = await parked(gateway, await submitted(gateway))
        await gateway.advance(HOLD_S)
        await poll.response()
        assert len(store(gateway).waiting) == 0
        assert len(gateway.gateway._sampling.delivery._holds) == 0
        assert await polls(gateway, "pending") == 1


async def test_a_ready_result_is_not_held(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await delivered(gateway, request_id)
        again = gateway.poll(request_id)
        await turns(1)
        assert again.answered


async def test_another_callers_sample_is_not_found(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        sampling = gateway.gateway._sampling
        assert sampling.find(request_id, DEFAULT.name).request_id == request_id
        with pytest.raises(NotFound):
            sampling.find(request_id, "another")


# --- what is said meanwhile ---------------------------------------------------------------------


async def try_again(gateway: Driven, request_id: str) -> Any:
    poll = await parked(gateway, request_id)
    await gateway.advance(HOLD_S)
    response = await poll.response()
    assert response.status == 408
    body = response.json()
    assert set(body) == {"type", "request_id", "queue_state", "queue_state_reason"}
    return body


async def test_running_is_active(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await held.running()
        body = await try_again(gateway, request_id)
    assert (body["queue_state"], body["queue_state_reason"]) == ("active", None)


async def test_queued_is_paused_for_want_of_a_slot(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream, upstream__max_connections=1) as gateway:
        await submitted(gateway, 0)
        waiting = await submitted(gateway, 1)
        await held.running()
        body = await try_again(gateway, waiting)
    assert body["queue_state"] == "paused_capacity"
    assert "free slot" in body["queue_state_reason"]


async def test_queued_for_want_of_bytes_is_paused_too(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream, store__max_bytes=2000) as gateway:
        params = {"max_tokens": 150}
        await gateway.submit(0, sampling_params=params)
        promise = await gateway.submit(1, sampling_params=params)
        await held.running()
        body = await try_again(gateway, promise.json()["request_id"])
        assert len(upstream.requests) == 1
        held.release()
        await until(lambda: len(upstream.requests) == 2)
    assert body["queue_state"] == "paused_capacity"


async def test_unavailable_is_paused_and_says_so(upstream: FakeUpstream) -> None:
    async def unavailable(_: Request) -> Raw:
        return answer(503, {"error": {"message": "starting"}})

    upstream.script = unavailable
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await until(lambda: len(upstream.requests) == 2)
        body = await try_again(gateway, request_id)
    assert body["queue_state"] == "paused_capacity"
    assert "not available" in body["queue_state_reason"]


# --- waking -------------------------------------------------------------------------------------


async def test_a_result_wakes_its_poll_at_once(upstream: FakeUpstream) -> None:
    """The clock stands still: nothing but the result can end the hold."""
    held = Held(upstream)
    async with ready(upstream) as gateway:
        poll = await parked(gateway, await submitted(gateway))
        held.release()
        response = await poll.response()
        assert response.status == 200
        assert await polls(gateway, "ready") == 1


async def test_a_failure_wakes_its_poll_too(upstream: FakeUpstream) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def refuses(_: Request) -> Raw:
        begun.set()
        await go.wait()
        return answer(400, {"error": {"message": "no"}})

    upstream.script = refuses
    async with ready(upstream) as gateway:
        poll = await parked(gateway, await submitted(gateway))
        await begun.wait()
        go.set()
        assert (await poll.response()).json()["category"] == "user"


async def test_overdue_work_wakes_its_poll_with_an_error(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream, poll__hold_s=40, upstream__read_timeout_s=32) as gateway:
        request_id = await submitted(gateway)
        await held.running()
        poll = await parked(gateway, request_id)
        await gateway.advance(32.5)
        assert not poll.answered, "silence is told before, by the transport"
        await gateway.advance(0.5)
        response = await poll.response()
        assert response.status == 200
        assert response.json()["category"] == "server"
        assert "32 s" in response.json()["error"]
        await until(upstream.requests[0].hung_up.is_set)


async def test_all_polls_of_one_id_are_answered(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        both = [await parked(gateway, request_id) for _ in range(2)]
        other = await parked(gateway, await submitted(gateway, 1))
        other.hang_up()
        held.release()
        first, second = [await poll.response() for poll in both]
    assert first.status == second.status == 200
    assert first.body == second.body


async def test_one_of_two_polls_may_leave(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        stays, leaves = await parked(gateway, request_id), await parked(gateway, request_id)
        leaves.hang_up()
        await turns()
        assert (stays.answered, leaves.answered) == (False, True)
        held.release()
        assert (await stays.response()).status == 200


@pytest.mark.parametrize("per_turn", [1, 3, 128])
async def test_so_many_wakes_in_one_turn_of_the_loop(upstream: FakeUpstream, per_turn: int) -> None:
    count = 20
    Held(upstream)
    async with ready(upstream, poll__wakes_per_turn=per_turn) as gateway:
        request_id = await submitted(gateway)
        held = [gateway.poll(request_id) for _ in range(count)]
        await turns()
        gateway.clock.advance(HOLD_S)
        gateway.gateway.tick()
        answered, in_a_turn = 0, []
        while answered < count:
            await asyncio.sleep(0)
            now = sum(poll.answered for poll in held)
            in_a_turn.append(now - answered)
            answered = now
        assert max(in_a_turn) == min(per_turn, count)
        assert len([n for n in in_a_turn if n]) == -(-count // per_turn)


async def test_stopping_answers_all_and_ends_their_connections(upstream: FakeUpstream) -> None:
    Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        poll = await parked(gateway, request_id)
        gateway.gateway.stop_holding()
        response = await poll.response()
        assert response.status == 408
        assert response.headers[b"connection"] == b"close"
        late = await gateway.poll(request_id).response()
        assert (late.status, late.headers[b"connection"]) == (408, b"close")


# --- delivered or not ---------------------------------------------------------------------------


async def test_delivered_to_an_open_client_is_kept_300_seconds(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await delivered(gateway, request_id)
        await gateway.advance(DELIVERED_S - 0.25)
        assert await status(gateway, request_id) == 200
        await gateway.advance(0.25)
        assert await status(gateway, request_id) == 410


async def test_each_delivery_starts_the_clock_again(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        first = await delivered(gateway, request_id)
        for _ in range(10):
            await gateway.advance(DELIVERED_S - 1)
            assert (await delivered(gateway, request_id)).body == first.body
        await gateway.advance(DELIVERED_S)
        assert await status(gateway, request_id) == 410


async def test_a_result_that_nobody_fetched_is_kept_2048_seconds(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await until(lambda: store(gateway).results_bytes)
        await gateway.advance(UNDELIVERED_S - 0.25)
        assert await status(gateway, request_id) == 200
        await gateway.advance(0.25)
        assert await status(gateway, request_id) == 410
        assert len(store(gateway)) == 0


async def test_a_client_that_left_while_parked_was_delivered_nothing(
    upstream: FakeUpstream,
) -> None:
    held = Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        poll = await parked(gateway, request_id)
        poll.hang_up()
        await turns()
        assert poll.answered, "it ends as soon as its client has left"
        held.release()
        await until(lambda: store(gateway).results_bytes)
        await gateway.advance(DELIVERED_S)
        assert await status(gateway, request_id) == 200
        await gateway.advance(UNDELIVERED_S - DELIVERED_S)
        assert await status(gateway, request_id) == 410


async def test_a_client_that_leaves_as_the_result_comes_was_delivered_nothing(
    upstream: FakeUpstream,
) -> None:
    """Both in one turn of the loop: the answer is written, to nobody."""
    async with ready(upstream) as gateway:
        held = Held(upstream)
        request_id = await submitted(gateway)
        await held.running()
        poll = await parked(gateway, request_id)
        record = gateway.gateway._store.find(request_id)
        assert record is not None
        store(gateway).succeed(record, b"result", gateway.clock.now())
        gateway.gateway._sampling._runs.settled(record)
        poll.hang_up()
        response = await poll.response()
        assert (response.status, response.body) == (200, b"result")
        await gateway.advance(DELIVERED_S)
        assert await status(gateway, request_id) == 200
        assert await polls(gateway, "abandoned") == 2


async def test_a_client_gone_before_it_was_looked_at_was_delivered_nothing(
    upstream: FakeUpstream,
) -> None:
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await until(lambda: store(gateway).results_bytes)
        assert await status(gateway, request_id) == 200
        await gateway.advance(DELIVERED_S)
        assert await status(gateway, request_id) == 200
        assert await polls(gateway, "abandoned") == 2
        assert await polls(gateway, "ready") == 0


async def test_a_lost_answer_does_not_undo_an_earlier_delivery(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await delivered(gateway, request_id)
        await gateway.advance(200)
        assert await status(gateway, request_id) == 200
        await gateway.advance(100)
        assert await status(gateway, request_id) == 410


async def test_an_error_result_lives_as_a_result_does(upstream: FakeUpstream) -> None:
    async def refuses(_: Request) -> Raw:
        return answer(400, {"error": {"message": "no"}})

    upstream.script = refuses
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        assert (await delivered(gateway, request_id)).json()["category"] == "user"
        await gateway.advance(DELIVERED_S - 1)
        assert await status(gateway, request_id) == 200
        await gateway.advance(1)
        assert await status(gateway, request_id) == 410


async def test_a_dropped_poll_cancels_nothing(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await held.running()
        for _ in range(3):
            poll = await parked(gateway, request_id)
            poll.hang_up()
            await poll.response()
        assert not upstream.requests[0].hung_up.is_set()
        held.release()
        await delivered(gateway, request_id)
        assert len(upstream.requests) == 1
        assert await polls(gateway, "abandoned") == 3


async def test_a_poll_that_its_server_cancels_leaves_nothing_behind(
    upstream: FakeUpstream,
) -> None:
    """As hypercorn does to what is still parked when it stops."""
    held = Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        poll = await parked(gateway, request_id)
        poll._task.cancel()
        await asyncio.wait([poll._task])
        assert store(gateway).parked == 0
        assert len(gateway.gateway._sampling.delivery._holds) == 0
        held.release()
        await delivered(gateway, request_id)


# --- by server ----------------------------------------------------------------------------------


async def after_the_body(made: Any) -> Receive:
    """A server's receive(), its body read; granian's gives a future from its second call on."""
    if isinstance(made, GranianReceive):
        return made.receive
    receive: Receive = made.receive if isinstance(made, UvicornCycle) else made
    await read_body({"headers": []}, receive, 100)
    return receive


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("server", [UvicornCycle, UvicornReceive, HypercornReceive, GranianReceive])
async def test_parked_under_each_server(upstream: FakeUpstream, server: Any, leaves: bool) -> None:
    """The handler itself, below the reading of its body, with each server's receive()."""
    held = Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        made = server()
        match = gateway.gateway._table.find("/api/v1/retrieve_future")
        assert match is not None
        call = Call(
            {"headers": []},
            await after_the_body(made),
            b'{"request_id":"%b"}' % request_id.encode(),
            "",
            DEFAULT,
        )
        poll = asyncio.ensure_future(match.route.handler(call))
        await turns()
        assert not poll.done()
        if leaves:
            made.hang_up()
            gateway.gateway.tick()  # looks at those that tell and wake nobody
            assert (await poll).status == 408
        held.release()
        if leaves:
            await until(lambda: store(gateway).results_bytes)
        else:
            assert (await poll).status == 200
        await gateway.advance(DELIVERED_S)
        assert await status(gateway, request_id) == (200 if leaves else 410)


@pytest.mark.parametrize("server", [UvicornCycle, UvicornReceive, HypercornReceive, GranianReceive])
async def test_leaving_as_the_result_comes_under_each_server(
    upstream: FakeUpstream, server: Any
) -> None:
    Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        made = server()
        sampling, record = gateway.gateway._sampling, gateway.gateway._store.find(request_id)
        assert record is not None
        peer = Peer(await after_the_body(made))
        outcome = asyncio.ensure_future(sampling.delivery.outcome(record, peer))
        await turns()
        store(gateway).succeed(record, b"result", gateway.clock.now())
        sampling._runs.settled(record)
        made.hang_up()
        assert await outcome == "ready"
        assert not peer.seen_open()
        peer.close()


async def test_sleeping_polls_are_looked_at_some_in_each_tick(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those with a wish for a shorter hold, and those that came meanwhile."""
    monkeypatch.setattr(delivery, "LOOKED_AT_PER_TICK", 2)
    Held(upstream)
    async with ready(upstream) as gateway:
        sampling = gateway.gateway._sampling
        cycles = [UvicornCycle() for _ in range(5)]
        polls = []
        for number, cycle in enumerate(cycles):
            peer = Peer(await after_the_body(cycle))
            wish_s = 1.0 if number % 2 else None
            polls.append(asyncio.ensure_future(sampling.delivery.nothing(peer, wish_s)))
        await turns()
        for cycle in cycles:
            cycle.hang_up()
        done = []
        for _ in range(3):
            gateway.gateway.tick()
            await turns()
            done.append(sum(poll.done() for poll in polls))
        assert done == [2, 4, 5]
