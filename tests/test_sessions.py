"""Sessions (policies 6): who is alive, what a lapse ends, and what is remembered how long."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asgi_gateway.errors import Gone, NotFound, Unsupported
from asgi_gateway.ids import Ids
from asgi_gateway.ledger import NOBODY
from asgi_gateway.sessions import RESOLUTION_S, SamplingSession, Sessions
from asgi_gateway.upstream.catalog import Model
from tests.support.asgi_client import Response, turns
from tests.support.gateway import Driven, driven
from tests.support.held import Held, metric
from tests.support.upstream import FakeUpstream

API = "/api/v1"
TIMEOUT_S, RETENTION_S = 300.0, 86_400.0
MODEL, OTHER = Model("up", "org/base", "salt"), Model("up2", "org/other", "salt2")


def new() -> Sessions:
    return Sessions(TIMEOUT_S, RETENTION_S, Ids(), NOBODY)


# --- the book of sessions -----------------------------------------------------------------------


def test_ids_are_not_guessable_and_hold_no_colon() -> None:
    sessions = new()
    ids = set()
    for _ in range(100):
        session = sessions.create("caller", 0.0)
        made = sessions.create_sampling(session, 0, MODEL)
        ids |= {session.session_id, made.sampling_session_id}
    assert len(ids) == 200
    for one in ids:
        assert ":" not in one
        assert len(one.split("-", 2)[2]) == 16, "96 bits that nobody can make without the key"


def test_a_session_is_found_by_its_caller_alone() -> None:
    sessions = new()
    session = sessions.create("alice", 0.0)
    made = sessions.create_sampling(session, 0, MODEL)
    assert sessions.find(session.session_id, "alice") is session
    assert sessions.find_sampling(made.sampling_session_id, "alice") is made
    with pytest.raises(NotFound) as foreign:
        sessions.find(session.session_id, "bob")
    with pytest.raises(NotFound) as unknown:
        sessions.find("session-x", "bob")
    assert str(foreign.value) == str(unknown.value)
    with pytest.raises(NotFound) as foreign:
        sessions.find_sampling(made.sampling_session_id, "bob")
    with pytest.raises(NotFound) as unknown:
        sessions.find_sampling("sampler-x", "bob")
    assert str(foreign.value) == str(unknown.value)


def test_creating_a_sampling_session_is_idempotent_by_its_number() -> None:
    sessions = new()
    session, another = sessions.create("caller", 0.0), sessions.create("caller", 0.0)
    made = sessions.create_sampling(session, 3, MODEL)
    assert sessions.create_sampling(session, 3, Model("up", "org/base", "salt")) is made
    assert sessions.create_sampling(session, 4, MODEL) is not made
    assert sessions.create_sampling(another, 3, MODEL) is not made
    with pytest.raises(Unsupported, match="3"):
        sessions.create_sampling(session, 3, OTHER)
    assert sessions.create_sampling(session, 3, MODEL) is made


def lapsed(sessions: Sessions, now: float, budget: int = 100) -> list[SamplingSession]:
    return sessions.sweep(now, budget).lapsed


def test_a_session_lapses_after_the_timeout_and_once() -> None:
    sessions = new()
    session = sessions.create("caller", 0.0)
    made = [sessions.create_sampling(session, number, MODEL) for number in range(2)]
    assert lapsed(sessions, TIMEOUT_S - 0.5) == []
    assert lapsed(sessions, TIMEOUT_S) == made
    assert lapsed(sessions, TIMEOUT_S) == []
    assert sessions.find(session.session_id, "caller") is session, "its identity stays"


def test_a_sign_of_life_starts_the_timeout_again_and_revives() -> None:
    sessions = new()
    session = sessions.create("caller", 0.0)
    made = sessions.create_sampling(session, 0, MODEL)
    sessions.alive(session, 200.0)
    assert lapsed(sessions, 200.0 + TIMEOUT_S - 0.5) == []
    assert lapsed(sessions, 200.0 + TIMEOUT_S) == [made]
    sessions.sign_of_life(made.sampling_session_id, 1000.0)
    assert lapsed(sessions, 1000.0 + TIMEOUT_S - 0.5) == []
    assert lapsed(sessions, 1000.0 + TIMEOUT_S) == [made]


def test_signs_of_life_that_come_together_count_as_one_and_none_for_less() -> None:
    sessions = new()
    session = sessions.create("caller", 0.0)
    made = sessions.create_sampling(session, 0, MODEL)
    for eighth in range(1, 100):
        sessions.alive(session, eighth / 8)
        sessions.alive(session, eighth / 8 + 1 / 16)
    last = 99 / 8
    assert lapsed(sessions, last + TIMEOUT_S - 1 / 16) == []
    assert lapsed(sessions, last + TIMEOUT_S + RESOLUTION_S) == [made]


def test_a_sign_of_life_of_what_is_not_known_is_nothing() -> None:
    sessions = new()
    sessions.sign_of_life("sampler-x", 0.0)
    assert len(sessions) == 0
    assert lapsed(sessions, 1e9) == []


def test_a_finished_session_shows_no_life() -> None:
    sessions = new()
    session = sessions.create("caller", 0.0)
    made = sessions.create_sampling(session, 0, MODEL)
    assert sessions.finish(session) == [made]
    sessions.sign_of_life(made.sampling_session_id, 10.0)
    assert lapsed(sessions, 1000.0) == [], "its work has ended already"
    with pytest.raises(Gone):
        sessions.find(session.session_id, "caller")
    with pytest.raises(NotFound, match="finished"):
        sessions.find_sampling(made.sampling_session_id, "caller")


@pytest.mark.parametrize("finished", [False, True])
def test_after_the_retention_nothing_is_left(finished: bool) -> None:
    sessions = new()
    session = sessions.create("caller", 0.0)
    made = sessions.create_sampling(session, 0, MODEL)
    sessions.alive(session, 50.0)
    if finished:
        sessions.finish(session)
    sessions.sweep(50.0 + RETENTION_S - 0.5, 100)
    assert len(sessions) == 1
    sessions.sweep(50.0 + RETENTION_S, 100)
    assert len(sessions) == 0
    with pytest.raises(NotFound):
        sessions.find(session.session_id, "caller")
    with pytest.raises(NotFound):
        sessions.find_sampling(made.sampling_session_id, "caller")
    assert (sessions._sampling, len(sessions._alive), len(sessions._kept)) == ({}, 0, 0)


def test_a_retention_shorter_than_the_timeout_ends_the_work_too() -> None:
    """Else its samples would run on, and nobody could ever ask for them."""
    sessions = Sessions(300.0, 100.0, Ids(), NOBODY)
    session = sessions.create("caller", 0.0)
    made = sessions.create_sampling(session, 0, MODEL)
    assert lapsed(sessions, 100.0) == [made]
    assert lapsed(sessions, 300.0) == []
    assert (sessions._sampling, len(sessions._alive), len(sessions._kept)) == ({}, 0, 0)


def test_a_sweep_has_a_budget_and_resumes() -> None:
    sessions = new()
    for _ in range(5):
        sessions.create_sampling(sessions.create("caller", 0.0), 0, MODEL)
    assert [len(lapsed(sessions, 1000.0, 2)) for _ in range(4)] == [2, 2, 1, 0]
    counts = []
    for _ in range(4):
        sessions.sweep(1e6, 2)
        counts.append(len(sessions))
    assert counts == [3, 1, 0, 0]


def test_a_sampling_session_made_after_finish_is_of_no_use() -> None:
    """`finish` may come while the model of a new sampling session is being looked up."""
    sessions = new()
    session = sessions.create("caller", 0.0)
    sessions.finish(session)
    made = sessions.create_sampling(session, 0, MODEL)
    with pytest.raises(NotFound):
        sessions.find_sampling(made.sampling_session_id, "caller")
    sessions.sweep(RETENTION_S, 100)
    assert sessions._sampling == {}


def test_repr_says_how_many() -> None:
    sessions = new()
    sessions.create_sampling(sessions.create("caller", 0.0), 0, MODEL)
    assert repr(sessions) == "<Sessions 1, 1 sampling>"


# --- through the gateway ------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def ready(upstream: FakeUpstream, **flags: Any) -> AsyncIterator[Driven]:
    async with driven(upstream.url, **flags) as gateway:
        await gateway.handshake()
        yield gateway


async def submitted(gateway: Driven, seq_id: int = 0) -> str:
    promise = await gateway.submit(seq_id)
    assert promise.status == 200, promise.body
    request_id: str = promise.json()["request_id"]
    return request_id


async def heartbeat(gateway: Driven) -> Response:
    return await gateway.client.post(f"{API}/session_heartbeat", {"session_id": gateway.session_id})


async def test_a_lapse_ends_the_work_and_drops_the_results(upstream: FakeUpstream) -> None:
    async with ready(upstream, upstream__max_connections=1) as gateway:
        done = await submitted(gateway, 0)
        assert (await gateway.poll(done).response()).status == 200
        held = Held(upstream)
        running, queued = await submitted(gateway, 1), await submitted(gateway, 2)
        await held.running(2)
        await gateway.advance(TIMEOUT_S - 0.5)
        assert not upstream.requests[1].hung_up.is_set()
        await gateway.advance(0.5)
        async with asyncio.timeout(2):
            await upstream.requests[1].hung_up.wait()
        for request_id in (done, running, queued):
            assert (await gateway.poll(request_id).response()).status == 410
        held.release()
        await turns()
        assert len(upstream.requests) == 2, "what was queued never ran"
        text = (await gateway.client.get("/metrics")).body
        assert metric(text, "samples_held") == 0
        assert metric(text, "charged_bytes") == 0
        assert metric(text, "sessions") == 1


async def test_the_next_sample_revives_the_session(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        old = await submitted(gateway, 0)
        await gateway.advance(TIMEOUT_S)
        assert (await gateway.poll(old).response()).status == 410
        again = await submitted(gateway, 0)
        assert again != old, "what lapsed is a new sample"
        assert (await gateway.poll(again).response()).status == 200
        assert (await heartbeat(gateway)).status == 200
        await gateway.advance(TIMEOUT_S - 1)
        assert (await gateway.poll(again).response()).status == 200


async def test_a_heartbeat_revives_too(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        await gateway.advance(TIMEOUT_S)
        assert (await heartbeat(gateway)).status == 200
        assert (await gateway.submit()).status == 200


async def life(gateway: Driven, kind: str, request_id: str) -> None:
    if kind == "heartbeat":
        await heartbeat(gateway)
    elif kind == "asample":
        await gateway.submit(99)
    elif kind == "poll":
        poll = gateway.poll(request_id)
        await turns()
        poll.hang_up()
        await poll.response()
    elif kind == "join":
        await gateway.client.get(f"{API}/samplers/{gateway.sampling_session_id}")
    else:
        body = {
            "session_id": gateway.session_id,
            "sampling_session_seq_id": 0,
            "base_model": "stand-in",
        }
        await gateway.client.post(f"{API}/create_sampling_session", body)


@pytest.mark.parametrize("kind", ["heartbeat", "asample", "poll", "join", "create"])
async def test_any_request_of_a_session_is_life(upstream: FakeUpstream, kind: str) -> None:
    held = Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await held.running()
        for _ in range(4):
            await gateway.advance(TIMEOUT_S - 1)
            await life(gateway, kind, request_id)
        assert not upstream.requests[0].hung_up.is_set()
        held.release()
        assert (await gateway.poll(request_id).response()).status == 200


@pytest.mark.parametrize("path", [f"{API}/create_session", f"{API}/telemetry", "/metrics"])
async def test_requests_of_nobody_are_nobodys_life(upstream: FakeUpstream, path: str) -> None:
    held = Held(upstream)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await held.running()
        await gateway.advance(TIMEOUT_S - 1)
        await gateway.client.post(path)
        await gateway.advance(1)
        assert (await gateway.poll(request_id).response()).status == 410


async def test_one_session_lapses_and_another_goes_on(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream) as gateway:
        silent = await submitted(gateway)
        await gateway.handshake()
        lively = await submitted(gateway)
        await held.running(2)
        await gateway.advance(TIMEOUT_S - 1)
        await heartbeat(gateway)
        await gateway.advance(1)
        held.release()
        assert (await gateway.poll(silent).response()).status == 410
        assert (await gateway.poll(lively).response()).status == 200


async def test_retention_forgets(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await gateway.advance(RETENTION_S - 1)
        assert (await gateway.client.get("/metrics")).status == 200
        await gateway.advance(1)
        assert (await gateway.submit(1)).status == 404
        assert (await heartbeat(gateway)).status == 404
        assert (await gateway.poll(request_id).response()).status == 410, "issued once"
        text = (await gateway.client.get("/metrics")).body
        assert metric(text, "sessions") == 0
        assert metric(text, "samples_held") == 0


async def test_retention_counts_from_the_last_sign_of_life(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        await gateway.advance(RETENTION_S - 1)
        assert (await heartbeat(gateway)).status == 200
        await gateway.advance(RETENTION_S - 1)
        assert (await gateway.submit(1)).status == 200


async def test_a_retention_shorter_than_the_timeout_leaves_no_work(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream, session__retention_s=100) as gateway:
        request_id = await submitted(gateway)
        await held.running()
        await gateway.advance(100)
        async with asyncio.timeout(2):
            await upstream.requests[0].hung_up.wait()
        assert (await gateway.poll(request_id).response()).status == 410
        assert (await gateway.submit(1)).status == 404
