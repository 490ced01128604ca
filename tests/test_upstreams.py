"""Upstreams that fail, hang, come back and leave: what becomes of samples, load and readiness."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asgi_gateway.errors import NotFound
from tests.support.asgi_client import Connection, Response, turns
from tests.support.gateway import Driven, driven
from tests.support.held import metric
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import until

GOOD = answer(200, completion([11, 12], [-1.0, -2.0]))
BUSY = answer(503, {"error": {"message": "loading"}})
ENGINE = answer(500, {"error": {"message": "EngineCore died"}})

pytestmark = pytest.mark.usefixtures("each_transport")


class Switch:
    """A script that a test changes while it runs: `answer`, or `wait` before it. It begins with
    waiting where it is `held`."""

    def __init__(self, upstream: FakeUpstream, raw: Raw = GOOD, *, held: bool = False) -> None:
        self.answer = raw
        self.wait = asyncio.Event()
        if not held:
            self.wait.set()
        upstream.script = self._script

    async def _script(self, _: Request) -> Raw:
        await self.wait.wait()
        return self.answer


async def outcome(poll: Connection) -> Response:
    async with asyncio.timeout(10):
        return await poll.response()


async def submitted(gateway: Driven, count: int, first: int = 0) -> list[str]:
    ids = []
    for seq_id in range(first, first + count):
        promise = await gateway.submit(seq_id)
        assert promise.status == 200, promise.body
        ids.append(promise.json()["request_id"])
    return ids


async def reasons(gateway: Driven) -> list[str]:
    response = await gateway.client.get("/readyz")
    found: list[str] = response.json()["reasons"]
    assert (response.status == 200) == (not found)
    return found


async def settle(gateway: Driven, *upstreams: FakeUpstream) -> None:
    """Until nothing is under way."""
    await until(lambda: not any(upstream.active for upstream in upstreams))
    await asyncio.sleep(0.02)


async def pass_time(gateway: Driven, seconds: float, step: float = 0.5) -> None:
    """With the sockets' time in between."""
    for _ in range(round(seconds / step)):
        await gateway.advance(step)
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def ready(*upstreams: FakeUpstream, **flags: Any) -> AsyncIterator[Driven]:
    urls = [upstream.url for upstream in upstreams]
    async with driven("", upstream__urls=urls, **flags) as gateway:
        await gateway.handshake()
        yield gateway


def name(upstream: FakeUpstream) -> str:
    return upstream.url.removeprefix("http://")


async def scraped(gateway: Driven, metric_name: str, **labels: str) -> float:
    return metric((await gateway.client.get("/metrics")).body, metric_name, **labels)


# --- none available: the line stands --------------------------------------------------------------


async def test_an_outage_of_90_s_costs_no_sample_and_full_speed_is_back_at_once(
    upstream: FakeUpstream,
) -> None:
    switch = Switch(upstream, BUSY, held=True)
    async with ready(upstream, upstream__max_connections=20) as gateway:
        ids = await submitted(gateway, 60)
        await until(lambda: upstream.active == 20)
        switch.wait.set()
        await settle(gateway, upstream)
        # What was under way failed; nothing else is sent to fail.
        assert len(upstream.requests) <= 20 + 5
        refused = await gateway.submit(99)
        assert refused.status == 429
        assert upstream.url.removeprefix("http://") not in refused.body.decode()
        assert "not available" in refused.json()["detail"]
        assert await reasons(gateway) == [
            f"no upstream is available: {name(upstream)} fails samples; it is tried again soon"
        ]
        assert await scraped(gateway, "breaker_state", upstream=name(upstream)) == 2
        await pass_time(gateway, 90)
        # Five probes at a time, ever further apart, and never a herd.
        assert len(upstream.requests) <= 20 + 5 * 15
        poll = gateway.poll(ids[0])
        await turns()
        await gateway.advance(31)
        assert (await outcome(poll)).json()["queue_state"] == "paused_capacity"
        switch.answer = GOOD
        await pass_time(gateway, 16)
        for request_id in ids:
            assert (await outcome(gateway.poll(request_id))).status == 200
        assert await reasons(gateway) == []
        assert await scraped(gateway, "upstream_inflight", upstream=name(upstream)) == 0
        assert await scraped(gateway, "breaker_state", upstream=name(upstream)) == 0
        assert await scraped(gateway, "breaker_opened_total", upstream=name(upstream)) >= 4


async def test_queued_samples_wait_without_being_sent_and_say_why(upstream: FakeUpstream) -> None:
    switch = Switch(upstream, ENGINE, held=True)
    async with ready(upstream, upstream__max_connections=5) as gateway:
        ids = await submitted(gateway, 30)
        await until(lambda: upstream.active == 5)
        switch.wait.set()
        await settle(gateway, upstream)
        sent = len(upstream.requests)
        assert sent <= 5 + 4  # until the fifth failure each frees a place
        poll = gateway.poll(ids[-1])
        await turns()
        switch.wait = asyncio.Event()
        await gateway.advance(31)
        told = await outcome(poll)
        assert told.status == 408
        reason = "the inference server is not available; trying again"
        assert told.json()["queue_state_reason"] == reason
        # The probes are real samples, and no more than five of them.
        await until(lambda: upstream.active == 5)
        switch.answer = GOOD
        assert len(upstream.requests) == sent + 5
        switch.wait.set()
        await settle(gateway, upstream)
        await gateway.advance(2)
        for request_id in ids:
            assert (await outcome(gateway.poll(request_id))).status == 200


async def test_after_an_outage_with_nothing_in_line_new_samples_are_the_probes(
    upstream: FakeUpstream,
) -> None:
    switch = Switch(upstream, BUSY)
    async with ready(upstream, upstream__unavailable_grace_s=1) as gateway:
        ids = await submitted(gateway, 8)
        await settle(gateway, upstream)
        await pass_time(gateway, 20)
        for request_id in ids:
            assert (await outcome(gateway.poll(request_id))).status == 410
        switch.answer = GOOD
        await pass_time(gateway, 16)
        (request_id,) = await submitted(gateway, 1, first=50)
        assert (await outcome(gateway.poll(request_id))).status == 200


async def test_client_mistakes_do_not_open_a_breaker(upstream: FakeUpstream) -> None:
    switch = Switch(upstream, answer(400, {"error": {"message": "too long"}}))
    async with ready(upstream) as gateway:
        ids = await submitted(gateway, 300)
        for request_id in ids:
            assert (await outcome(gateway.poll(request_id))).json()["category"] == "user"
        switch.answer = GOOD
        (request_id,) = await submitted(gateway, 1, first=500)
        assert (await outcome(gateway.poll(request_id))).status == 200
        assert await scraped(gateway, "breaker_opened_total", upstream=name(upstream)) == 0


async def test_cancelled_samples_do_not_open_a_breaker(upstream: FakeUpstream) -> None:
    Switch(upstream, held=True)
    async with ready(upstream) as gateway:
        ids = await submitted(gateway, 30)
        await until(lambda: upstream.active == 30)
        for request_id in ids:
            gateway.gateway._sampling.cancel(gateway.gateway._store.find(request_id))  # type: ignore[arg-type]
        await settle(gateway, upstream)
        state = gateway.gateway.fleet.states[0]
        assert (state.breaker, state.in_flight) == ("closed", 0)


# --- the retry budget -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [BUSY, ENGINE], ids=["503", "500"])
async def test_a_burst_of_faults_makes_no_storm(upstream: FakeUpstream, fault: Raw) -> None:
    """A third of all fail, which no breaker minds: 1.2 x what is sent first, and ten."""
    seen: Counter[str] = Counter()

    async def script(request: Request) -> Raw:
        seen[request.request_id] += 1
        return fault if seen.total() % 3 == 0 else GOOD

    upstream.script = script
    async with ready(upstream, upstream__max_connections=30) as gateway:
        ids = await submitted(gateway, 300)
        await until(lambda: len(seen) == 300)
        await settle(gateway, upstream)
        for _ in range(20):
            await gateway.advance(0.1)
            await asyncio.sleep(0.005)
        await settle(gateway, upstream)
        assert seen.total() <= 1.2 * 300 + 10
        assert await scraped(gateway, "retries_delayed_total") > 0
        # Nothing is dropped: what waits comes through as time allows.
        for _ in range(200):
            await gateway.advance(0.5)
            await asyncio.sleep(0.002)
            if gateway.gateway._store.in_flight == 0:
                break
        outcomes = [(await outcome(gateway.poll(request_id))).status for request_id in ids]
        assert Counter(outcomes) == {200: 300}


async def test_a_retry_over_budget_waits_and_then_answers_410(upstream: FakeUpstream) -> None:
    switch = Switch(upstream, BUSY, held=True)
    async with ready(
        upstream,
        upstream__max_connections=100,
        upstream__breaker_failures=1000,
        upstream__unavailable_grace_s=20,
        upstream__health_interval_s=0,
    ) as gateway:
        # Before the breaker has its twenty outcomes.
        ids = await submitted(gateway, 19)
        switch.wait.set()
        await settle(gateway, upstream)
        assert len(upstream.requests) <= 1.2 * 19 + 10
        await pass_time(gateway, 21)
        for request_id in ids:
            assert (await outcome(gateway.poll(request_id))).status == 410


# --- one of two -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[FakeUpstream, FakeUpstream]]:
    async with FakeUpstream().running() as left, FakeUpstream().running() as right:
        yield left, right


async def throughput(gateway: Driven, rounds: int, hung: FakeUpstream) -> int:
    """Four clients that wait for each sample, but for those that the hung one has: how many were
    answered."""
    answered = 0

    async def client(number: int) -> None:
        nonlocal answered
        for turn in range(rounds):
            (request_id,) = await submitted(gateway, 1, number * rounds + turn)
            record = gateway.gateway._store.find(request_id)
            assert record is not None
            if record.upstream != hung.url:
                assert (await outcome(gateway.poll(request_id))).status == 200
                answered += 1

    await asyncio.gather(*(client(number) for number in range(4)))
    return answered


async def test_a_hung_upstream_leaves_the_other_its_samples() -> None:
    async with two() as (well, hung), ready(well, hung) as gateway:
        switch = Switch(hung, held=True)
        answered = await throughput(gateway, 25, hung)
        await until(lambda: hung.active + answered == 100)
        # It holds 1.25 times the average of what is in flight: with little in flight, few.
        held = hung.active
        assert held <= 7  # 1.25 times the half of them and three others, rounded up
        assert len(well.requests) == answered
        fleet = gateway.gateway.fleet
        assert [state.in_flight for state in fleet.states] == [0, held]
        switch.wait.set()


async def test_a_full_line_in_front_of_a_hung_upstream_moves_on() -> None:
    """With all connections in use the other keeps three eighths of them at least."""

    async def slowly(_: Request) -> Raw:
        await asyncio.sleep(0.02)
        return GOOD

    async with two() as (well, hung), ready(well, hung, upstream__max_connections=32) as gateway:
        well.script = slowly
        switch = Switch(hung, held=True)
        await submitted(gateway, 400)
        await until(lambda: len(well.requests) + hung.active == 400, 20)
        assert hung.active <= 20
        assert well.peak >= 12
        switch.wait.set()


async def test_a_hung_upstream_is_ejected_and_gives_its_samples_back() -> None:
    async with two() as (well, hung), ready(well, hung) as gateway:
        Switch(hung, held=True)
        hung.health = _silent
        await gateway.advance(0)
        ids = await submitted(gateway, 8)
        await until(lambda: hung.active + len(well.requests) == 8)
        held = hung.active
        assert held
        for _ in range(3):
            gateway.gateway.fleet.checked(
                gateway.gateway.fleet.upstreams[1], False, gateway.clock.time
            )
        assert await scraped(gateway, "upstream_up", upstream=name(hung)) == 0
        more = await submitted(gateway, 20, first=100)
        for request_id in more:
            assert (await outcome(gateway.poll(request_id))).status == 200
        await gateway.advance(100)
        assert hung.active == held
        await gateway.advance(21)
        await until(lambda: not hung.active)
        statuses = [(await outcome(gateway.poll(request_id))).status for request_id in ids]
        assert Counter(statuses) == {200: 8 - held, 410: held}
        assert await scraped(gateway, "upstream_hung_total") == held
        assert await scraped(gateway, "upstream_inflight", upstream=name(hung)) == 0


async def test_an_upstream_that_is_slowly_answering_keeps_its_samples() -> None:
    """It is too busy for health checks, and no answer is whole; but bytes come."""
    whole = asyncio.Event()

    async def slowly(request: Request) -> Raw:
        body = GOOD.data.partition(b"\r\n\r\n")[2]
        await request.write(b"HTTP/1.1 200 X\r\ncontent-length: %d\r\n\r\n" % len(body))
        await request.write(body[:1])
        await whole.wait()
        return Raw(body[1:], "keep")

    async with two() as (well, slow), ready(well, slow) as gateway:
        slow.script, slow.health = slowly, _silent
        await gateway.advance(0)
        ids = await submitted(gateway, 8)
        await until(lambda: slow.active + len(well.requests) == 8)
        held = slow.active
        assert held
        await asyncio.sleep(0.05)
        for _ in range(3):
            gateway.gateway.fleet.checked(
                gateway.gateway.fleet.upstreams[1], False, gateway.clock.time
            )
        await gateway.advance(121)
        await asyncio.sleep(0.05)
        assert slow.active == held
        assert await scraped(gateway, "upstream_hung_total") == 0
        whole.set()
        statuses = [(await outcome(gateway.poll(request_id))).status for request_id in ids]
        assert statuses == [200] * 8


async def _silent(_: Request) -> Raw:
    await asyncio.sleep(3600)
    return Raw()


async def test_draining_gives_no_new_samples_and_lets_the_others_finish() -> None:
    async with two() as (left, right), ready(left, right) as gateway:
        switch = Switch(left, held=True)
        ids = await submitted(gateway, 8)
        await until(lambda: left.active + len(right.requests) == 8)
        held = left.active
        assert held
        gateway.gateway.drain_upstream(left.url, True)
        ids += await submitted(gateway, 20, first=100)
        await until(lambda: len(right.requests) == 28 - held)
        assert [state.draining for state in gateway.gateway.fleet.states] == [True, False]
        assert await scraped(gateway, "upstream_draining", upstream=name(left)) == 1
        switch.wait.set()
        for request_id in ids:
            assert (await outcome(gateway.poll(request_id))).status == 200
        assert len(left.requests) == held
        gateway.gateway.drain_upstream(left.url, False)
        await submitted(gateway, 20, first=200)
        await until(lambda: len(left.requests) > held)
        with pytest.raises(NotFound, match="no upstream has this URL"):
            gateway.gateway.drain_upstream("http://elsewhere:1", True)


async def test_draining_all_is_not_ready(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        gateway.gateway.drain_upstream(upstream.url, True)
        assert (await gateway.submit()).status == 429
        assert await reasons(gateway) == [f"no upstream is available: {name(upstream)} is draining"]
        gateway.gateway.drain_upstream(upstream.url, False)
        (request_id,) = await submitted(gateway, 1)
        assert (await outcome(gateway.poll(request_id))).status == 200


# --- health checks over sockets -------------------------------------------------------------------


async def checked(gateway: Driven, upstream: FakeUpstream) -> None:
    """One more health check, and its outcome."""
    before = upstream.asked_for_health
    await gateway.advance(5)
    await until(lambda: upstream.asked_for_health > before)
    await until(lambda: not gateway.gateway._sampling._checks._asking)


@pytest.mark.parametrize("status", [404, 405, 401, 200])
async def test_an_upstream_that_answers_is_alive(upstream: FakeUpstream, status: int) -> None:
    async def health(_: Request) -> Raw:
        return Raw(answer(status, b"").data, "close")

    upstream.health = health
    async with ready(upstream) as gateway:
        await gateway.advance(0)
        for _ in range(4):
            await checked(gateway, upstream)
        assert gateway.gateway.fleet.states[0].up


async def test_three_bad_checks_eject_and_two_good_ones_bring_back(upstream: FakeUpstream) -> None:
    async def dead(_: Request) -> Raw:
        return Raw(answer(503, b"").data, "close")

    alive, upstream.health = upstream.health, dead
    async with ready(upstream) as gateway:
        await gateway.advance(0)
        for _ in range(2):
            await checked(gateway, upstream)
        assert await reasons(gateway) == []
        await checked(gateway, upstream)
        assert await reasons(gateway) == [
            f"no upstream is available: {name(upstream)} does not answer its health checks"
        ]
        assert (await gateway.submit()).status == 429
        upstream.health = alive
        await checked(gateway, upstream)
        assert (await gateway.submit()).status == 429
        await checked(gateway, upstream)
        (request_id,) = await submitted(gateway, 1)
        assert (await outcome(gateway.poll(request_id))).status == 200


async def test_one_that_answers_samples_but_no_checks_stays(upstream: FakeUpstream) -> None:
    """A vLLM that is busy for 40 s."""
    upstream.health = _silent
    async with ready(upstream, upstream__health_timeout_s=0.05) as gateway:
        await gateway.advance(0)
        for seq_id in range(6):
            (request_id,) = await submitted(gateway, 1, first=seq_id)
            assert (await outcome(gateway.poll(request_id))).status == 200
            await checked(gateway, upstream)
        assert gateway.gateway.fleet.states[0].up
        for _ in range(3):
            await checked(gateway, upstream)
        assert not gateway.gateway.fleet.states[0].up


async def test_no_checks_where_they_are_off(upstream: FakeUpstream) -> None:
    async with ready(upstream, upstream__health_interval_s=0) as gateway:
        await pass_time(gateway, 30, 5)
        assert not upstream.asked_for_health


async def test_no_check_outlives_the_gateway(upstream: FakeUpstream) -> None:
    upstream.health = _silent
    async with ready(upstream) as gateway:
        await gateway.advance(0)
        await gateway.advance(5)
        await until(lambda: upstream.asked_for_health)
        asking = list(gateway.gateway._sampling._checks._asking.values())
        async with asyncio.timeout(3):
            await gateway.gateway.close()
        await asyncio.wait(asking, timeout=3)
        assert all(task.done() for task in asking)
