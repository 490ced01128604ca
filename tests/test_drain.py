"""A process that is told to stop: what it does in which stage, by a clock that is moved by hand."""

import asyncio

import pytest

from asgi_gateway.admission import Admission
from asgi_gateway.drain import Drain, Left, Stage
from asgi_gateway.errors import Unready
from asgi_gateway.settings import DrainSettings
from tests.support.asgi_client import turns
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.held import Held, metric
from tests.support.upstream import FakeUpstream, Raw, Request
from tests.support.waiting import until


class Stops:
    """A drain of 5 and 60 s at time 100, what is left of the samples, and how often it stopped."""

    def __init__(self, predrain_s: float = 5.0, grace_s: float = 60.0) -> None:
        self.left = Left(2, 1)
        self.admission = Admission()
        self.let_go = self.stopped = 0
        settings = DrainSettings(predrain_s=predrain_s, grace_s=grace_s)
        self.drain = Drain(settings, self.admission, lambda: self.left, self._let_go)

    def signal(self, now: float) -> None:
        self.drain.signalled(now, self._stop)

    def _let_go(self) -> None:
        self.let_go += 1

    def _stop(self) -> None:
        assert self.let_go == 1, "parked polls are answered before the server hears of it"
        self.stopped += 1

    def at(self, now: float) -> Stage:
        self.drain.tick(now)
        return self.drain.stage


# --- the stages -----------------------------------------------------------------------------------


def test_it_serves_until_it_is_told() -> None:
    stops = Stops()
    assert stops.at(1e9) is Stage.SERVING
    assert stops.admission.reasons == []


def test_first_it_only_says_so() -> None:
    stops = Stops()
    stops.signal(100.0)
    assert stops.drain.stage is Stage.PREDRAIN
    assert stops.admission.reasons == [
        "about to drain: 2 samples unfinished, 1 results undelivered"
    ]
    stops.admission.check()
    stops.left = Left(0, 0)
    assert stops.at(104.9) is Stage.PREDRAIN, "also with nothing left: a balancer must notice"
    assert stops.stopped == 0


def test_then_it_refuses_new_samples_and_waits_for_the_rest() -> None:
    stops = Stops()
    stops.signal(100.0)
    assert stops.at(105.0) is Stage.DRAINING
    with pytest.raises(Unready, match=r"^draining: 2 samples unfinished, 1 results undelivered$"):
        stops.admission.check()
    stops.left = Left(0, 1)
    assert stops.at(106.0) is Stage.DRAINING
    assert stops.admission.reasons == ["draining: 0 samples unfinished, 1 results undelivered"]
    stops.left = Left(0, 0)
    assert stops.at(106.1) is Stage.STOPPED
    assert stops.stopped == 1


def test_what_does_not_end_is_not_waited_for_beyond_the_grace() -> None:
    stops = Stops()
    stops.signal(100.0)
    assert stops.at(105.3) is Stage.DRAINING
    assert stops.at(164.9) is Stage.DRAINING
    assert stops.at(165.0) is Stage.STOPPED, "the late tick before has not moved the end"
    assert stops.at(1000.0) is Stage.STOPPED
    assert stops.stopped == 1


@pytest.mark.parametrize("second_at", [101.0, 120.0])
def test_a_second_signal_stops_at_once(second_at: float) -> None:
    stops = Stops()
    stops.signal(100.0)
    stops.drain.tick(second_at)
    stops.signal(second_at)
    assert stops.drain.stage is Stage.STOPPED
    stops.signal(second_at)
    assert stops.stopped == 1


def test_without_waits_the_first_signal_stops() -> None:
    stops = Stops(0, 0)
    stops.signal(100.0)
    assert (stops.drain.stage, stops.stopped) == (Stage.STOPPED, 1)


def test_a_loop_that_stood_still_over_it_all_stops_at_once() -> None:
    stops = Stops()
    stops.signal(100.0)
    assert stops.at(1000.0) is Stage.STOPPED


# --- a gateway ------------------------------------------------------------------------------------


class Draining:
    """A gateway that is told to stop, and what it says of it."""

    def __init__(self, gateway: Driven) -> None:
        self.gateway = gateway
        self.stopped = asyncio.Event()

    async def reasons(self) -> list[str]:
        ready = await self.gateway.client.get("/readyz")
        assert ready.status == (503 if ready.json()["reasons"] else 200)
        reasons: list[str] = ready.json()["reasons"]
        return reasons

    async def stage(self) -> float:
        return metric((await self.gateway.client.get("/metrics")).body, "draining")

    def signal(self) -> None:
        self.gateway.gateway.drain(self.stopped.set)


async def test_all_of_it_over_a_running_sample(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with driven(upstream.url) as gateway:
        draining = Draining(gateway)
        await gateway.handshake()
        running = (await gateway.submit(1)).json()["request_id"]
        poll = gateway.poll(running)
        await held.running()
        assert (await draining.stage(), await draining.reasons()) == (0, [])

        draining.signal()
        assert await draining.stage() == 1
        assert await draining.reasons() == [
            "about to drain: 1 samples unfinished, 0 results undelivered"
        ]
        assert (await gateway.submit(2)).status == 200, "taken as before"

        await gateway.advance(5)
        assert await draining.stage() == 2
        refused = await gateway.submit(3)
        assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
        assert "draining: 2 samples unfinished" in refused.json()["detail"]
        repeated = await gateway.submit(1)
        assert (repeated.status, repeated.json()["request_id"]) == (200, running)
        assert (await gateway.client.get("/livez")).status == 200
        assert not poll.answered, "polls are held as always"
        await gateway.advance(30)
        assert (await poll.response()).status == 408

        held.release()
        results = [await gateway.poll(running).response()]
        await gateway.advance(0.1)
        assert not draining.stopped.is_set()
        assert await draining.reasons() == ["draining: 0 samples unfinished, 1 results undelivered"]
        second = (await gateway.submit(2)).json()["request_id"]
        results.append(await gateway.poll(second).response())
        assert {result.status for result in results} == {200}
        assert not any(b"connection" in result.headers for result in results)
        await gateway.advance(0.1)
        assert draining.stopped.is_set()


async def test_a_lost_sample_is_waited_for_until_its_client_knows(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        upstream.script = _resets
        await gateway.handshake()
        draining = Draining(gateway)
        lost = (await gateway.submit(1)).json()["request_id"]
        await until(lambda: gateway.gateway._store.targets.lost)
        draining.signal()
        await gateway.advance(6)
        assert await draining.reasons() == ["draining: 0 samples unfinished, 1 results undelivered"]
        assert (await gateway.submit(1)).status == 503, "to run it again would be a new one"
        assert (await gateway.poll(lost).response()).status == 410
        await gateway.advance(0.1)
        assert draining.stopped.is_set()


async def _resets(_: Request) -> Raw:
    return Raw(then="reset")


async def test_a_sample_that_its_client_cancelled_is_not_waited_for(
    upstream: FakeUpstream,
) -> None:
    held = Held(upstream)
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        draining = Draining(gateway)
        ids = [(await gateway.submit(seq_id)).json()["request_id"] for seq_id in (1, 2)]
        await gateway.client.post("/api/v1/cancel_future", {"request_id": ids[0]}, SDK_HEADERS)
        held.release()
        await until(lambda: gateway.gateway._store.in_flight == 0)
        draining.signal()
        await gateway.advance(6)
        assert not draining.stopped.is_set()
        assert (await gateway.poll(ids[1]).response()).status == 200
        await gateway.advance(0.1)
        assert draining.stopped.is_set()


async def test_stopped_it_answers_what_is_parked_and_takes_nothing(upstream: FakeUpstream) -> None:
    Held(upstream)
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        draining = Draining(gateway)
        poll = gateway.poll((await gateway.submit(1)).json()["request_id"])
        await turns()
        draining.signal()
        draining.signal()
        answered = await poll.response()
        assert (answered.status, answered.headers[b"connection"]) == (408, b"close")
        assert (await gateway.submit(2)).status == 503
        assert await draining.reasons() == ["the gateway is stopping"]
        await gateway.advance(100)
        assert await draining.reasons() == ["the gateway is stopping"]
