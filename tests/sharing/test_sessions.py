"""Sessions that one gateway made, at the other; and who may ask for what."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sharing.steps import (
    API,
    Holding,
    batched,
    beaten,
    cancelled,
    finished,
    page,
    parked,
    polled_as,
    until_status,
)
from tests.support.keyed import entries, secret_of
from tests.support.sharing import Pair, beside, shared_pair
from tests.support.upstream import FakeUpstream
from tests.support.waiting import event, until
from tests.support.wire import SDK_HEADERS, Remote, wire

pytestmark = [pytest.mark.servers, pytest.mark.system]

TIMEOUT_S = 2.5


@pytest.fixture(scope="module")
def short(upstream_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Sessions lapse soon."""
    folder, url = tmp_path_factory.mktemp("short"), f"http://127.0.0.1:{upstream_port}"
    with shared_pair(url, folder, session__timeout_s=TIMEOUT_S, poll__hold_s=20) as running:
        yield running


async def create(remote: Remote, seq_id: int, model: str = "stand-in") -> tuple[int, str]:
    body = {
        "session_id": remote.session_id,
        "sampling_session_seq_id": seq_id,
        "base_model": model,
    }
    told = await remote.post(f"{API}/create_sampling_session", body)
    return told.status, told.json().get("sampling_session_id", "")


# --- made here, used there ------------------------------------------------------------------------


async def test_a_session_is_known_at_the_other(pair: Pair, upstream: FakeUpstream) -> None:
    a, b = await pair.clients()
    assert await beaten(b) == 200
    told = await b.get(f"{API}/samplers/{b.sampling_session_id}")
    assert told.json()["base_model"] == "stand-in"
    assert (await b.get(f"{API}/sessions/{b.session_id}")).status == 200
    # A sampling session of a session of the other, and the number decides which it is.
    made = await create(b, 7)
    assert made[0] == 200
    assert await create(a, 7) == made
    assert await create(b, 0) == (200, a.sampling_session_id)
    both = [asyncio.ensure_future(create(remote, 8)) for remote in (a, b, a, b)]
    assert len({await one for one in both}) == 1
    a.sampling_session_id = (await both[0])[1]
    beside(a, b)
    assert (await b.poll(await a.submit())).status == 200
    assert (await a.poll(await b.submit())).status == 200


async def test_a_session_that_nobody_made_is_404_at_both(
    pair: Pair, upstream: FakeUpstream
) -> None:
    a, b = await pair.clients()
    for remote in (a, b):
        remote.session_id = remote.session_id[:-1] + "_"
        remote.sampling_session_id = remote.sampling_session_id[:-1] + "_"
        assert await beaten(remote) == 404
        assert (await remote.post(f"{API}/asample", remote.sample())).status == 404
        assert (await batched(remote, timeout=0)).status == 404


# --- its end --------------------------------------------------------------------------------------


async def test_finish_at_one_ends_the_work_of_the_other(pair: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    ids = [await a.submit(), await b.submit()]
    await until(lambda: set(held.ids) == set(ids))
    async with parked(b, ids[0]) as standing:
        assert (await finished(b)).status == 200
        for request in upstream.requests:
            await event(request.hung_up)
        assert (await standing).status == 410
    for remote in (a, b):
        assert await beaten(remote) == 410
        assert (await remote.post(f"{API}/asample", remote.sample())).status == 404
        assert [(await remote.poll(one)).status for one in ids] == [410, 410]
        assert await page(remote, 3, timeout=0) == ({}, 3)
        assert (await finished(remote)).status == 200
        await remote.until(lambda now: now["samples_inflight"] == 0)


@pytest.fixture
def fresh(upstream_port: int, tmp_path: Path) -> Iterator[Pair]:
    with shared_pair(f"http://127.0.0.1:{upstream_port}", tmp_path) as running:
        yield running


async def test_nothing_is_left_of_what_is_over(fresh: Pair, upstream: FakeUpstream) -> None:
    """But the notes of sessions, which say that they are finished, and of who is there."""
    held, (a, b) = Holding(upstream), await fresh.clients()
    held.go()
    ids = [await remote.submit() for remote in (a, b, a, b)]
    for number, one in enumerate(ids):
        assert (await (a, b)[number % 2].poll(one)).status == 200
    held.hold()
    ids += [await remote.submit() for remote in (a, b)]
    _, cursor = await page(a, timeout=5)
    await page(b, cursor, timeout=0, seen=ids[:2])
    await page(a, cursor, timeout=0, seen=ids[2:4])
    assert await cancelled(b, ids[4]) == 200
    assert (await finished(b)).status == 200

    def left() -> set[str]:
        """Kinds of keys: without ids, epochs and groups."""
        kinds = set()
        for key in fresh.held_keys():
            kinds.add(key.partition("}:")[2].partition(":")[0] or key.split(":")[1])
        return kinds

    # e, a, t, u: a session, its sampling session, its last sign of life, the list of its caller's:
    # kept for its retention.
    await until(lambda: left() == {"e", "a", "t", "u", "workers", "lease", "key"}, 10)


# --- its life -------------------------------------------------------------------------------------


async def test_heartbeats_at_the_other_keep_work_alive(short: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await short.clients()
    request_id = await a.submit()
    await until(lambda: held.ids == [request_id])
    for _ in range(14):
        await asyncio.sleep(TIMEOUT_S / 5)
        assert await beaten(b) == 200
    assert not upstream.requests[0].hung_up.is_set()
    held.go()
    assert (await a.poll(request_id)).status == 200


async def test_polls_at_the_other_keep_work_alive(short: Pair, upstream: FakeUpstream) -> None:
    """The gateway that is polled never heard of the session."""
    held, (a, b) = Holding(upstream), await short.clients()
    request_id = await a.submit()
    await until(lambda: held.ids == [request_id])
    for _ in range(7):
        async with wire(b.port) as connection:
            b.send_poll(connection, request_id)
            await asyncio.sleep(TIMEOUT_S / 2.5)
    assert not upstream.requests[0].hung_up.is_set()


async def test_without_any_sign_of_life_work_ends_everywhere(
    short: Pair, upstream: FakeUpstream
) -> None:
    held, (a, b) = Holding(upstream), await short.clients()
    ids = [await a.submit(), await b.submit()]
    await until(lambda: set(held.ids) == set(ids))
    began = asyncio.get_running_loop().time()
    for request in upstream.requests:
        await event(request.hung_up, 2 * TIMEOUT_S + 3)
    assert asyncio.get_running_loop().time() - began > TIMEOUT_S - 0.5
    for remote in (a, b):
        assert [(await remote.poll(one)).status for one in ids] == [410, 410]
    # The next request revives it.
    held.go()
    assert (await b.poll(await a.submit())).status == 200
    assert await beaten(b) == 200


# --- callers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed(upstream_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("keyed")
    file = folder / "keys.toml"
    file.write_text(entries({"alice": {"max_in_flight": 3}, "bob": {}}))
    url = f"http://127.0.0.1:{upstream_port}"
    with shared_pair(url, folder, access__keys_file=file, poll__hold_s=8) as running:
        yield running


class Keyed(Remote):
    key = ""

    async def post(self, path: str, body: object) -> object:  # type: ignore[override]
        async with wire(self.port) as connection:
            headers = {**SDK_HEADERS, "X-API-Key": self.key}
            return await connection.ask("POST", path, body, headers)


def as_caller(name: str, pair: Pair) -> tuple[Keyed, Keyed]:
    one, other = Keyed(pair.a.port), Keyed(pair.b.port)
    one.key = other.key = secret_of(name)
    return one, other


async def test_callers_are_apart_at_both(keyed: Pair, upstream: FakeUpstream) -> None:
    (a, b), (c, d) = as_caller("alice", keyed), as_caller("bob", keyed)
    for one, other in ((a, b), (c, d)):
        await one.handshake()
        beside(one, other)
    request_id = await a.submit()
    assert (await polled_as(b, request_id, b.key)).status == 200
    for remote in (c, d):
        assert (await polled_as(remote, request_id, remote.key)).status == 404
        body = {"request_id": request_id}
        assert (await remote.post(f"{API}/cancel_future", body)).status == 404  # type: ignore[attr-defined]
    d.session_id, d.sampling_session_id = a.session_id, a.sampling_session_id
    assert await beaten(d) == 404
    assert (await batched(d, timeout=0)).status == 404
    # An acknowledgement of another caller's frees nothing.
    d.sampling_session_id = c.sampling_session_id
    await page(d, timeout=0, seen=[request_id])
    assert (await polled_as(b, request_id, b.key)).status == 200


async def test_what_ran_elsewhere_uses_up_no_limit_here(
    keyed: Pair, upstream: FakeUpstream
) -> None:
    """Of a submit that the other had taken in already, and of one that was refused."""
    a, b = as_caller("alice", keyed)
    await a.handshake()
    beside(a, b)
    body = a.sample()
    for _ in range(5):
        assert (await a.post(f"{API}/asample", body)).status == 200  # type: ignore[attr-defined]
    for _ in range(5):
        assert (await b.post(f"{API}/asample", body)).status == 200  # type: ignore[attr-defined]
    other = {**body, "sampling_params": {"max_tokens": 7}}
    for _ in range(5):
        assert (await b.post(f"{API}/asample", other)).status == 422  # type: ignore[attr-defined]
    request_id = await b.submit()
    assert (await polled_as(a, request_id, a.key)).status == 200


async def test_a_caller_that_was_interrupted_hears_it_at_the_other(
    pair: Pair, upstream: FakeUpstream
) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    request_id = await a.submit()
    await until(lambda: held.ids == [request_id])
    upstream.requests[0].writer.transport.abort()
    assert await until_status(b, request_id) == 410
