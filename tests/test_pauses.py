"""What holds the event loop is measured: a late ticker, and each collection of a real collector."""

import asyncio
import gc
import time
import urllib.request
from collections.abc import Iterator

import pytest

from asgi_gateway import Gateway
from asgi_gateway.clock import SystemClock
from asgi_gateway.metrics import Metrics
from asgi_gateway.pauses import MANY, RECENT_S, GcPauses, LoopLag, tasks
from tests.support.asgi_client import AsgiClient
from tests.support.clock import ManualClock
from tests.support.gateway import settings
from tests.support.held import metric
from tests.support.processes import serve
from tests.support.waiting import until

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def no_collections() -> Iterator[None]:
    """None but those that a test asks for."""
    gc.disable()
    yield
    gc.enable()


# --- the loop -------------------------------------------------------------------------------------


def test_lag_is_what_exceeds_the_plan() -> None:
    lag = LoopLag(0.25)
    for now, last_s, max_s in [
        (10.0, 0.0, 0.0),
        (10.25, 0.0, 0.0),
        (11.0, 0.5, 0.5),
        (11.25, 0.0, 0.5),
        (11.26, 0.0, 0.5),
    ]:
        lag.came(now)
        assert (lag.last_s, lag.max_s) == (last_s, max_s)


def test_lag_between_two_scrapes_is_remembered_for_a_while() -> None:
    lag, metrics, now = LoopLag(0.1), Metrics(), 1000.0
    lag.add_to(metrics)

    def goes_on(for_s: float) -> float:
        """What the gauge says after so long without lag."""
        nonlocal now
        for _ in range(round(for_s * 10)):
            now += 0.1
            lag.came(now)
        return metric(metrics.render(), "event_loop_lag_recent_seconds")

    assert goes_on(20.0) == pytest.approx(0.0, abs=1e-6)
    now += 2.0
    assert goes_on(0.1) == pytest.approx(2.0)
    assert goes_on(RECENT_S - 0.5) == pytest.approx(2.0)
    assert goes_on(RECENT_S + 1.0) == pytest.approx(0.0, abs=1e-6)


async def test_a_loop_that_was_held_shows() -> None:
    async with Gateway(settings(NOWHERE)).running() as gateway:
        await until(lambda: gateway._lag._came_at is not None)
        time.sleep(0.35)  # noqa: ASYNC251 - the fault: somebody holds the loop
        await until(lambda: gateway._lag.max_s >= 0.25)
        text = (await AsgiClient(gateway).get("/metrics")).body
        assert metric(text, "event_loop_lag_seconds_max") >= 0.25
        came_at = gateway._lag._came_at
        await until(lambda: gateway._lag._came_at != came_at)
        assert gateway._lag.last_s < 0.25, "the last one, not the longest"


async def test_tasks_are_counted_when_scraped() -> None:
    async with Gateway(settings(NOWHERE)).running() as gateway:
        client = AsgiClient(gateway)

        async def shown() -> float:
            return metric((await client.get("/metrics")).body, "tasks")

        before = await shown()
        release = asyncio.Event()
        more = [asyncio.create_task(release.wait()) for _ in range(100)]
        # The gateway's own come and go meanwhile, as it asks for the models.
        assert await shown() == pytest.approx(before + 100, abs=5)
        release.set()
        await asyncio.gather(*more)
        assert await shown() == pytest.approx(before, abs=5)


async def test_many_tasks_are_counted_without_a_walk() -> None:
    """With those that other loops left, so what counts is how many come and go."""
    before = tasks()
    release = asyncio.Event()
    more = [asyncio.create_task(release.wait()) for _ in range(MANY + 100)]
    many = tasks()
    assert many >= before + MANY + 100
    more += [asyncio.create_task(release.wait()) for _ in range(50)]
    assert tasks() == many + 50
    release.set()
    await asyncio.gather(*more)
    more.clear()
    await asyncio.sleep(0)  # what woke us holds those that gather waited for
    assert tasks() == before


def test_there_are_no_tasks_outside_of_a_loop() -> None:
    assert tasks() == 0


# --- the collector --------------------------------------------------------------------------------


def test_collections_are_counted_by_generation(no_collections: None) -> None:
    pauses = GcPauses(SystemClock())
    gc.collect()
    pauses.open()
    for generation, times in ((0, 3), (1, 2), (2, 1)):
        for _ in range(times):
            gc.collect(generation)
    pauses.close()
    gc.collect()
    assert pauses.count == [3, 2, 1]
    assert min(pauses.sum_s) > 0
    assert max(pauses.sum_s) / 3 <= pauses.max_s <= sum(pauses.sum_s)


def test_pauses_add_up(no_collections: None) -> None:
    """By a clock that a finaliser moves in the middle of each collection."""
    clock = ManualClock()

    class Slow:
        def __init__(self, seconds: float) -> None:
            self.seconds, self.itself = seconds, self

        def __del__(self) -> None:
            clock.advance(self.seconds)

    pauses = GcPauses(clock)
    pauses.open()
    for seconds in (0.5, 2.0, 0.25):
        Slow(seconds)
        gc.collect()
    pauses.close()
    assert (pauses.sum_s[2], pauses.max_s) == (2.75, 2.0)


def test_one_that_opens_in_a_collection_counts_none_that_it_did_not_see_begin(
    no_collections: None,
) -> None:
    pauses = GcPauses(SystemClock())

    class Opens:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            pauses.open()

    Opens()
    gc.collect()
    assert pauses.count == [0, 0, 0]
    gc.collect()
    pauses.close()
    assert pauses.count == [0, 0, 1]


async def test_each_gateway_ends_its_own(no_collections: None) -> None:
    before = list(gc.callbacks)
    async with Gateway(settings(NOWHERE)).running() as one:
        async with Gateway(settings(NOWHERE)).running() as other:
            gc.collect()
            text = (await AsgiClient(one).get("/metrics")).body
            assert metric(text, "gc_pause_seconds_count", generation="2") == 1
            assert metric(text, "gc_pause_seconds_sum", generation="2") > 0
            assert metric(text, "gc_pause_seconds_max") > 0
        gc.collect()
        assert (one._pauses.count[2], other._pauses.count[2]) == (2, 1)
        await other.close()
        assert len(gc.callbacks) == len(before) + 1
    assert gc.callbacks == before


async def test_what_was_never_opened_leaves_nothing() -> None:
    before = list(gc.callbacks)
    gateway = Gateway(settings(NOWHERE))
    assert gc.callbacks == before
    await gateway.close()
    await asyncio.gather(gateway.open(), gateway.open())
    assert len(gc.callbacks) == len(before) + 1
    await gateway.close()
    assert gc.callbacks == before


def test_what_serve_collects_before_it_serves_is_no_pause() -> None:
    with (
        serve("http://127.0.0.1:9") as gateway,
        urllib.request.urlopen(f"{gateway.url}/metrics", timeout=5) as answer,
    ):
        text = answer.read()
    assert metric(text, "gc_pause_seconds_count", generation="2") == 0
    assert metric(text, "gc_pause_seconds_max") == 0
