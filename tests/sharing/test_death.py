"""A gateway that dies, stands still or stops, and what the other says of its samples."""

import asyncio
import os
import signal
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
from tests.support.sharing import LEASE_S, Pair, shared_pair
from tests.support.upstream import FakeUpstream
from tests.support.waiting import event, until
from tests.support.wire import Remote

pytestmark = [pytest.mark.servers, pytest.mark.system]

# From a death to what its clients are told of it.
TOLD_S = LEASE_S + 3.0
HOLD_S = 20.0


@pytest.fixture
def mortal(upstream_port: int, tmp_path: Path) -> Iterator[Pair]:
    url = f"http://127.0.0.1:{upstream_port}"
    with shared_pair(url, tmp_path, poll__hold_s=HOLD_S) as running:
        yield running
        for gateway in running.gateways:
            assert "Traceback" not in gateway.warnings(), gateway.stories()
            assert "bug" not in gateway.warnings(), gateway.stories()


async def settled(remote: Remote, held: Holding, count: int) -> list[str]:
    """Samples that have a result at their gateway and in the shared store."""
    held.go()
    ids = [await remote.submit() for _ in range(count)]
    for one in ids:
        assert (await remote.poll(one)).status == 200
    await remote.until(lambda now: now["store_unwritten"] == 0)
    held.hold()
    return ids


async def unfinished(remote: Remote, held: Holding, count: int) -> list[str]:
    """Samples that are running upstream."""
    ids = [await remote.submit() for _ in range(count)]
    await until(lambda: set(ids) <= set(held.ids))
    return ids


async def steady(pair: Pair) -> None:
    """Both have seen the server long enough to take others for dead."""
    await asyncio.sleep(LEASE_S + 0.7)


# --- kill -9 --------------------------------------------------------------------------------------


async def test_what_a_dead_gateway_finished_is_served_and_the_rest_is_410(
    mortal: Pair, upstream: FakeUpstream
) -> None:
    held, (a, b) = Holding(upstream), await mortal.clients()
    await steady(mortal)
    done = await settled(a, held, 3)
    lost = await unfinished(a, held, 3)
    kept = (await unfinished(b, held, 1))[0]
    told, cursor = await page(b, timeout=0)
    assert told == dict.fromkeys(done, "finished")
    async with parked(b, lost[0]) as standing:
        waiting = batched(b, cursor)
        mortal.a.kill()
        began = asyncio.get_running_loop().time()
        assert (await standing).status == 410
        assert asyncio.get_running_loop().time() - began < TOLD_S
        told = statuses((await waiting).json())
        assert told.items() <= dict.fromkeys(lost, "failed").items()
        assert told
    # What a 410 told of need not be.
    told = await pages(b, set(lost[1:]), cursor)
    assert told.items() >= dict.fromkeys(lost[1:], "failed").items()
    assert [(await b.poll(one)).status for one in done] == [200] * 3
    assert [(await b.poll(one)).status for one in lost] == [410] * 3
    held.go()
    assert (await b.poll(kept)).status == 200
    assert (await b.metrics())["store_buried_total"] == 1
    # It comes back as another.
    mortal.a.start()
    assert [(await a.poll(one)).status for one in (*done, *lost, kept)] == [200] * 3 + [410] * 3 + [
        200
    ]
    assert await beaten(a) == 200
    assert (await b.poll(await a.submit())).status == 200


async def test_a_submit_repeated_after_its_owners_death_runs_again(
    mortal: Pair, upstream: FakeUpstream
) -> None:
    held, (a, b) = Holding(upstream), await mortal.clients()
    await steady(mortal)
    body = a.sample()
    request_id = (await a.post(f"{API}/asample", body)).json()["request_id"]
    await until(lambda: held.ids == [request_id])
    async with parked(b, request_id) as standing:
        mortal.a.kill()
        # Nobody knows yet.
        assert (await b.post(f"{API}/asample", body)).json()["request_id"] == request_id
        assert (await standing).status == 410
    again = (await b.post(f"{API}/asample", body)).json()["request_id"]
    held.go()
    assert (await b.poll(again)).status == 200


async def test_both_die_and_their_results_live(mortal: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await mortal.clients()
    done = await settled(a, held, 2) + await settled(b, held, 2)
    lost = await unfinished(a, held, 1) + await unfinished(b, held, 1)
    for gateway in mortal.gateways:
        gateway.kill()
    for gateway in mortal.gateways:
        gateway.start()
    for remote in (a, b):
        assert [(await remote.poll(one)).status for one in done] == [200] * 4
    # Within a lease of the server's being seen, and a lease of the dead.
    assert [await until_status(b, one) for one in lost] == [410, 410]
    assert (await pages(a, set(done))).items() >= dict.fromkeys(done, "finished").items()


# --- a pause that was too long --------------------------------------------------------------------


async def test_a_gateway_that_stood_still_goes_on_as_another(
    mortal: Pair, upstream: FakeUpstream
) -> None:
    held, (a, b) = Holding(upstream), await mortal.clients()
    await steady(mortal)
    done = await settled(a, held, 2)
    lost = await unfinished(a, held, 3)
    async with parked(a, lost[0]) as at_home, parked(b, lost[1]) as elsewhere:
        _, cursor = await page(a, timeout=0)
        waiting = batched(a, cursor)
        await a.until(lambda now: now["polls_inflight"] == 2)
        os.kill(mortal.a.process.pid, signal.SIGSTOP)
        assert (await asyncio.wait_for(elsewhere, TOLD_S)).status == 410
        held.go()  # its answers are in its sockets when it goes on
        await asyncio.sleep(0.3)
        os.kill(mortal.a.process.pid, signal.SIGCONT)
        assert (await asyncio.wait_for(at_home, TOLD_S)).status == 410
        told = statuses((await asyncio.wait_for(waiting, TOLD_S)).json())
        assert set(told) <= set(lost)
        assert set(told.values()) <= {"failed"}
    for remote in (a, b):
        assert [(await remote.poll(one)).status for one in lost] == [410] * 3
        assert [(await remote.poll(one)).status for one in done] == [200] * 2
    await a.until(lambda now: now["store_fenced_total"] == 1)
    fresh = await a.submit()
    assert fresh.partition("-")[0] != lost[0].partition("-")[0]
    assert (await b.poll(fresh)).status == 200
    assert (await a.metrics())["samples_inflight"] == 0


async def test_a_short_pause_is_no_death(mortal: Pair, upstream: FakeUpstream) -> None:
    held, (a, b) = Holding(upstream), await mortal.clients()
    await steady(mortal)
    (request_id,) = await unfinished(a, held, 1)
    with mortal.a.process.frozen():
        await asyncio.sleep(LEASE_S / 3)
    held.go()
    assert (await b.poll(request_id)).status == 200
    assert (await a.metrics())["store_fenced_total"] == 0


# --- SIGTERM --------------------------------------------------------------------------------------


async def test_a_clean_stop_gives_its_samples_back_at_once(
    mortal: Pair, upstream: FakeUpstream
) -> None:
    held, (a, b) = Holding(upstream), await mortal.clients()
    done = await settled(a, held, 2)
    lost = await unfinished(a, held, 3)
    epoch = lost[0].partition("-")[0]
    async with parked(b, lost[0]) as standing:
        mortal.a.process.terminate()
        began = asyncio.get_running_loop().time()
        assert (await standing).status == 410
        assert asyncio.get_running_loop().time() - began < LEASE_S
    for request in upstream.requests:
        if request.request_id in lost:
            await event(request.hung_up)
    mortal.a.process.wait()
    assert [(await b.poll(one)).status for one in lost] == [410] * 3
    assert [(await b.poll(one)).status for one in done] == [200] * 2
    names = ("o", "lease")
    assert not [
        key for key in mortal.held_keys() if key.endswith(tuple(f"{n}:{epoch}" for n in names))
    ]
    assert epoch not in mortal.store.run("SMEMBERS", "agw:workers")
