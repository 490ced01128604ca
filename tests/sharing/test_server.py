"""The shared store's server: not there, killed, emptied, slow, full, replaced."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sharing.steps import (
    API,
    Holding,
    batched,
    beaten,
    page,
    pages,
    parked,
    statuses,
    until_status,
)
from tests.support.processes import free_port
from tests.support.sharing import LEASE_S, Pair, beside, shared, shared_pair
from tests.support.supervised import Supervised
from tests.support.upstream import FakeUpstream
from tests.support.valkey import knows_replica, replica_of, sentinel, valkey, wait_for
from tests.support.waiting import until
from tests.support.wire import Remote

pytestmark = [pytest.mark.servers, pytest.mark.system]

# A server that says nothing is given up soon.
TIMEOUT_S = 1.0
REFUSED = 'admission_rejected_total{reason="store"}'


@contextlib.contextmanager
def of(upstream_port: int, folder: Path, *options: str, **settings: object) -> Iterator[Pair]:
    url = f"http://127.0.0.1:{upstream_port}"
    settings = {"store__timeout_s": TIMEOUT_S, "poll__hold_s": 20, **settings}
    with shared_pair(url, folder, options=options, **settings) as running:
        yield running
        for gateway in running.gateways:
            assert "Traceback" not in gateway.warnings(), gateway.stories()
            assert "bug" not in gateway.warnings(), gateway.stories()


@pytest.fixture
def pair(upstream_port: int, tmp_path: Path) -> Iterator[Pair]:
    """With a server that keeps what it has when it is killed."""
    with of(upstream_port, tmp_path, "--appendonly", "yes", "--appendfsync", "always") as running:
        yield running


async def down(remote: Remote) -> None:
    await remote.until(lambda now: now["store_up"] == 0)


async def up(*remotes: Remote) -> None:
    for remote in remotes:
        await remote.until(lambda now: now["store_up"] == 1 and now["store_unwritten"] == 0)


async def ready(remote: Remote) -> int:
    return (await remote.get("/readyz")).status


# --- at the start ---------------------------------------------------------------------------------


def test_a_gateway_that_needs_it_does_not_start_without(tmp_path: Path) -> None:
    url = f"valkey://user:secret@127.0.0.1:{free_port()}/0"
    settings = {"store__url": url, "store__timeout_s": TIMEOUT_S}
    refused = Supervised.begun("http://127.0.0.1:9", free_port(), {**settings, "state__dir": ""})
    try:
        assert refused.wait() == 2, refused.story()
        assert refused.stdout == ""
        (line,) = (line for line in refused.stderr.splitlines() if "store.url" in line)
        assert "does not answer" in line
        assert line.startswith("asgi-gateway: store.url: valkey://")
        assert "secret" not in refused.stderr
        assert "Traceback" not in refused.stderr
    finally:
        refused.close()


async def test_a_gateway_that_may_do_without_starts_and_tells_later(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    port = free_port()
    settings: dict[str, object] = {
        "store__when_down": "degrade",
        "store__timeout_s": TIMEOUT_S,
        "id_key": "a key that both have, long enough",
    }
    first = shared(upstream.url, f"valkey://127.0.0.1:{port}/0", **settings)
    try:
        a = Remote(first.port)
        await a.handshake()
        done = await a.submit()
        assert (await a.poll(done)).status == 200
        held = Holding(upstream)
        runs = await a.submit()
        assert (await a.metrics())["store_unwritten"] == 2
        with valkey(tmp_path, port=port) as server:
            await up(a)
            second = shared(upstream.url, server.url, **settings)
            try:
                b = beside(a, Remote(second.port))
                await up(b)
                assert await beaten(b) == 200
                held.go()
                assert [await until_status(b, one) for one in (done, runs)] == [200, 200]
                assert await pages(b, {done, runs}) == dict.fromkeys((done, runs), "finished")
                assert (await a.poll(await b.submit())).status == 200
            finally:
                second.close()
        assert "Traceback" not in first.warnings(), first.stories()
    finally:
        first.close()


# --- killed ---------------------------------------------------------------------------------------


async def test_killed_and_back_with_its_data(pair: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    held.go()
    done = [await a.submit() for _ in range(3)]
    assert [(await b.poll(one)).status for one in done] == [200] * 3
    _, cursor = await page(b, timeout=0)
    held.hold()
    runs = [await remote.submit() for remote in (a, a, b)]
    await until(lambda: set(runs) <= set(held.ids))
    async with parked(b, runs[0]) as elsewhere, parked(a, runs[1]) as at_home:
        waiting = batched(b, cursor)
        pair.store.kill()
        await down(a)
        await down(b)
        await asyncio.sleep(LEASE_S + 1)  # all leases are over
        # They settle while nobody can be told.
        held.go()
        assert (await at_home).status == 200
        refused = await a.post(f"{API}/asample", a.sample())
        assert refused.status == 503
        assert refused.headers[b"retry-after"]
        assert (await a.metrics())[REFUSED] == 1
        assert [await ready(remote) for remote in (a, b)] == [503, 503]
        stands = asyncio.ensure_future(b.poll(done[0]))
        await asyncio.sleep(2 * TIMEOUT_S)
        assert not stands.done()
        assert not elsewhere.done()
        pair.store.start()
        assert (await elsewhere).status == 200
        assert (await stands).status == 200
        told = statuses((await waiting).json())
    await up(a, b)
    told |= await pages(a, set(runs), cursor)
    assert told == dict.fromkeys(runs, "finished")
    assert [(await remote.poll(one)).status for one in runs for remote in (a, b)] == [200] * 6
    assert (await b.poll(await a.submit())).status == 200
    assert [(await remote.metrics())["store_fenced_total"] for remote in (a, b)] == [0, 0]
    await a.until(lambda now: now["ready"] == 1)
    assert [await ready(remote) for remote in (a, b)] == [200, 200]


async def test_killed_and_back_without_its_data(
    upstream_port: int, upstream: FakeUpstream, tmp_path: Path
) -> None:
    with of(upstream_port, tmp_path) as pair:
        held, (a, b) = Holding(upstream), await pair.clients()
        held.go()
        done = await a.submit()
        assert (await b.poll(done)).status == 200
        for _ in range(3):
            await asyncio.sleep(4)  # neither has it any more
            if (await a.metrics())["samples_held"] == 0:
                break
        held.hold()
        told, cursor = await page(b, timeout=0)
        assert told == {done: "finished"}
        runs = [await remote.submit() for remote in (a, b, a)]
        await until(lambda: set(runs) <= set(held.ids))
        async with parked(b, runs[0]) as elsewhere, parked(b, runs[1]) as at_home:
            waiting = batched(a, cursor)
            pair.store.kill()
            await down(b)
            pair.store.start()
            await up(a, b)
            # Its owner tells of it anew, or its client was told that it is gone.
            held.go()
            assert (await elsewhere).status in (200, 410)
            assert (await at_home).status == 200
            told = statuses((await waiting).json())
        told |= await pages(b, {runs[1], runs[2]}, cursor)
        assert set(told) <= set(runs)
        assert await until_status(a, runs[2]) == 200
        assert await until_status(b, runs[2]) == 200
        # What was there alone is lost, and nobody says that it never was.
        assert [(await remote.poll(done)).status for remote in (a, b)] == [410, 410]
        assert [await beaten(remote) for remote in (a, b)] == [200, 200]
        assert (await b.poll(await a.submit())).status == 200
        assert (await a.poll(await b.submit())).status == 200


async def test_an_acknowledgement_while_it_is_down_is_told_later(
    pair: Pair, upstream: FakeUpstream
) -> None:
    a, b = await pair.clients()
    done = await a.submit()
    assert await pages(b, {done}) == {done: "finished"}
    pair.store.kill()
    await down(b)
    told = await batched(b, timeout=0, seen=[done])
    assert (told.status, told.json()["completions"]) == (200, [])
    await asyncio.sleep(2 * TIMEOUT_S)
    pair.store.start()
    await until(lambda: not any(done in key for key in pair.held_keys()), 10)
    assert (await b.poll(done)).status == 410


async def test_many_samples_are_told_anew_soon(pair: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    runs: list[str] = []
    while len(runs) < 1500:
        runs += await asyncio.gather(*[a.submit() for _ in range(100)])
    pair.store.run("FLUSHALL")
    sampling = f":i:{a.sampling_session_id}"

    def known() -> int:
        keys = [key for key in pair.held_keys() if key.endswith(sampling)]
        return int(pair.store.run("HLEN", keys[0])) if keys else 0

    await until(lambda: known() == len(runs), LEASE_S + 2)
    held.go()
    assert await pages(b, set(runs)) == dict.fromkeys(runs, "finished")


async def test_flushall_while_samples_run(pair: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    runs = [await a.submit() for _ in range(3)]
    await until(lambda: set(runs) <= set(held.ids))
    waiting = batched(b)
    await b.polls_parked(1)
    third = Remote(pair.b.port)
    await third.handshake()
    pair.store.run("FLUSHALL")
    await asyncio.sleep(LEASE_S)
    held.go()
    told = statuses((await waiting).json())
    told |= await pages(b, set(runs))
    assert told == dict.fromkeys(runs, "finished")
    assert [(await remote.poll(one)).status for one in runs for remote in (b, a)] == [200] * 6
    beside(third, a)
    assert (await b.poll(await a.submit())).status == 200
    assert len(pair.store.run("GET", "agw:key")) == 64


# --- slow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [TIMEOUT_S / 2, LEASE_S + 2 * TIMEOUT_S])
async def test_it_stands_still(pair: Pair, upstream: FakeUpstream, seconds: float) -> None:
    """For less than a call may take, and for longer than a lease."""
    held, (a, b) = Holding(upstream), await pair.clients()
    await asyncio.sleep(LEASE_S + 0.7)
    runs = [await remote.submit() for remote in (a, b)]
    await until(lambda: set(runs) <= set(held.ids))
    async with parked(b, runs[0]) as elsewhere:
        waiting = batched(b)
        await b.until(lambda now: now["polls_inflight"] == 2)
        with pair.store.frozen():
            held.go()
            submit = asyncio.ensure_future(a.post(f"{API}/asample", a.sample()))
            poll = asyncio.ensure_future(b.poll(runs[1]))
            await asyncio.sleep(seconds)
        assert (await elsewhere).status == 200
        assert (await poll).status == 200
        assert (await submit).status == (200 if seconds < TIMEOUT_S else 503)
        told = statuses((await waiting).json())
    told |= await pages(b, set(runs))
    assert told.items() >= dict.fromkeys(runs, "finished").items()
    assert [(await remote.metrics())["store_fenced_total"] for remote in (a, b)] == [0, 0]
    await up(a, b)
    await a.until(lambda now: now["ready"] == 1)
    assert (await b.poll(await a.submit())).status == 200


# --- full -----------------------------------------------------------------------------------------


async def test_it_is_full(pair: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    await asyncio.sleep(LEASE_S + 0.7)
    runs = [await remote.submit() for remote in (a, b)]
    await until(lambda: set(runs) <= set(held.ids))
    async with parked(b, runs[0]) as elsewhere:
        pair.store.run("CONFIG", "SET", "maxmemory", "1")
        for remote in (a, b):
            told = await remote.post(f"{API}/asample", remote.sample())
            assert told.status in (429, 503), told.body
            assert told.headers[b"retry-after"]
            assert (await remote.metrics())[REFUSED] == 1
        held.go()
        # At home they are delivered; elsewhere when there is room to tell of them.
        assert (await a.poll(runs[0])).status == 200
        await asyncio.sleep(2 * LEASE_S)
        assert not elsewhere.done()
        pair.store.run("CONFIG", "SET", "maxmemory", "0")
        assert (await elsewhere).status == 200
    assert (await pages(a, set(runs))) == dict.fromkeys(runs, "finished")
    assert [(await remote.poll(one)).status for one in runs for remote in (a, b)] == [200] * 4
    assert [(await remote.metrics())["store_fenced_total"] for remote in (a, b)] == [0, 0]
    # Nothing of what was refused is left.
    assert (await b.poll(await a.submit())).status == 200
    for remote in (a, b):
        await remote.until(lambda now: now["samples_inflight"] == 0)


# --- replaced -------------------------------------------------------------------------------------


async def test_failover_to_a_replica(upstream: FakeUpstream, tmp_path: Path) -> None:
    with (
        valkey(tmp_path) as primary,
        replica_of(primary, tmp_path) as replica,
        sentinel(primary, tmp_path) as watch,
        contextlib.ExitStack() as stack,
    ):
        wait_for(lambda: knows_replica(watch, replica), "replica known to the sentinel")
        url = f"valkey+sentinel://{watch.name}/store/0"
        remotes, gateways = [], []
        for _ in range(2):
            gateways.append(shared(upstream.url, url, store__timeout_s=TIMEOUT_S, poll__hold_s=20))
            stack.callback(gateways[-1].close)
            remotes.append(Remote(gateways[-1].port))
        a, b = remotes
        held = Holding(upstream)
        await a.handshake()
        beside(a, b)
        held.go()
        done = [await a.submit() for _ in range(3)]
        assert [(await b.poll(one)).status for one in done] == [200] * 3
        held.hold()
        runs = [await a.submit() for _ in range(3)]
        await until(lambda: set(runs) <= set(held.ids))
        async with parked(b, runs[0]) as elsewhere:
            primary.kill()
            held.go()
            assert (await elsewhere).status == 200
        await up(a, b)
        assert [await until_status(remote, one) for one in runs + done for remote in (a, b)] == [
            200
        ] * 12
        assert set(runs) <= (await pages(b, set(runs))).keys()
        await a.until(lambda now: now["ready"] == 1)
        assert (await b.poll(await a.submit())).status == 200
        for gateway in gateways:
            assert "Traceback" not in gateway.warnings(), gateway.stories()
