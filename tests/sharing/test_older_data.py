"""The store comes back with what it had some time ago: a failover to a replica that had not heard
of everything, or a machine that had not synced. Here it is a snapshot of a moment before."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sharing.steps import Holding, batched, page, pages, statuses
from tests.support.sharing import Pair, beside, shared_pair
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until
from tests.support.wire import Remote

pytestmark = pytest.mark.servers

# What is settled is let go of here, for the store has it.
LOCAL_S = 10.0
TOLD_WITHIN_S = 8.0


@pytest.fixture
def pair(upstream_port: int, tmp_path: Path) -> Iterator[Pair]:
    url = f"http://127.0.0.1:{upstream_port}"
    with shared_pair(
        url, tmp_path, store__timeout_s=1.0, poll__hold_s=2, store__lease_s=60.0
    ) as running:
        yield running
        for gateway in running.gateways:
            assert "Traceback" not in gateway.warnings(), gateway.stories()
            assert "bug" not in gateway.warnings(), gateway.stories()


async def back_to_the_snapshot(pair: Pair, *remotes: Remote) -> None:
    pair.store.kill()
    for remote in remotes:
        await remote.until(lambda now: now["store_up"] == 0)
    pair.store.start()
    for remote in remotes:
        await remote.until(lambda now: now["store_up"] == 1)


async def told(remote: Remote, request_id: str) -> int:
    """What polls say at last; the SDK polls on while it is to try again."""
    async with asyncio.timeout(TOLD_WITHIN_S):
        while (status := (await remote.poll(request_id)).status) == 408:
            pass
    return status


async def test_outcomes_that_it_lost_answer_410(pair: Pair, upstream: FakeUpstream) -> None:
    """In the snapshot they run, and their gateway has let go of them; nobody would end them."""
    held, (a, b) = Holding(upstream), await pair.clients()
    runs = [await a.submit() for _ in range(3)]
    await until(lambda: set(runs) <= set(held.ids))
    assert pair.store.run("SAVE") == "OK"
    held.go()
    await a.until(lambda now: now["samples_inflight"] == now["store_unwritten"] == 0)
    await a.until(lambda now: now["samples_held"] == 0, within_s=LOCAL_S * 2)
    await back_to_the_snapshot(pair, a, b)
    assert [await told(remote, run) for remote, run in zip((a, b), runs, strict=False)] == [410] * 2
    assert (await pages(b, {runs[2]}))[runs[2]] == "failed"
    assert await told(b, runs[2]) == 410
    assert [(await remote.metrics())["store_fenced_total"] for remote in (a, b)] == [0, 0]


async def test_an_outcome_that_its_gateway_still_has_is_written_again(
    pair: Pair, upstream: FakeUpstream
) -> None:
    held, (a, b) = Holding(upstream), await pair.clients()
    run = await a.submit()
    await until(lambda: run in held.ids)
    assert pair.store.run("SAVE") == "OK"
    held.go()
    await a.until(lambda now: now["samples_inflight"] == now["store_unwritten"] == 0)
    await back_to_the_snapshot(pair, a, b)
    assert await told(b, run) == 200
    assert len(held.ids) == 1


async def test_what_was_made_since_goes_on(pair: Pair, upstream: FakeUpstream) -> None:
    """A session and its samples are told anew, by the gateway that has them."""
    held, (a, b) = Holding(upstream), await pair.clients()
    assert pair.store.run("SAVE") == "OK"
    later = Remote(pair.a.port)
    await later.handshake()
    runs = [await later.submit() for _ in range(2)]
    await until(lambda: set(runs) <= set(held.ids))
    await back_to_the_snapshot(pair, a, b)
    at_other = beside(later, Remote(pair.b.port))
    held.go()
    waiting = batched(at_other)
    assert statuses((await waiting).json()).keys() <= set(runs)
    assert await told(later, runs[0]) == 200
    # It may have been asked before its own gateway told of it anew.
    assert await told(at_other, runs[1]) in (200, 410)
    assert await told(later, await at_other.submit()) == 200


async def test_what_was_acknowledged_may_be_back(pair: Pair, upstream: FakeUpstream) -> None:
    """And does no harm: nobody asks, and its clock runs."""
    held, (a, b) = Holding(upstream), await pair.clients()
    held.go()
    run = await a.submit()
    assert await told(b, run) == 200
    await a.until(lambda now: now["store_unwritten"] == 0)
    assert pair.store.run("SAVE") == "OK"
    found, cursor = await page(a)
    assert found == {run: "finished"}
    await page(a, cursor, seen=[run], timeout=0)
    await back_to_the_snapshot(pair, a, b)
    assert await told(b, run) in (200, 410)
    assert await told(b, await a.submit()) == 200
