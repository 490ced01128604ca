"""Upstreams that are replaced while samples run: `Fleet.replace`, and what hears of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from asgi_gateway.configuration import load
from asgi_gateway.errors import NotFound, Overloaded, Unavailable
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.upstream.breaker import CLOSED, HALF_OPEN, OPEN
from tests.support.catalog import BASE, lora, serve
from tests.support.gateway import Driven, driven
from tests.support.held import Held, metric
from tests.support.told import Told
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until
from tests.upstream.test_fleet import Kept

ONE, TWO, THREE = "http://h1:1", "http://h2:1", "http://h3:1"


# --- the fleet ------------------------------------------------------------------------------------


class Moves(Kept):
    """Keeps what the fleet told of its URLs."""

    def __init__(self, *urls: str) -> None:
        super().__init__(*urls)
        self.told: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.fleet.moved.append(lambda present, served: self.told.append((present, served)))

    @property
    def available(self) -> list[str]:
        return [upstream.url for upstream in self.fleet.available]


def test_one_that_stays_keeps_what_is_known_of_it() -> None:
    moves = Moves(ONE, TWO)
    one, two = moves.fleet.upstreams
    moves.fail(0, 5, Unavailable("x"))
    moves.fleet.drain(TWO, True)
    moves.fleet.replace([THREE, TWO, ONE])
    assert moves.fleet.upstreams[1:] == (two, one)
    assert moves.available == [THREE]
    assert moves.told == [((THREE, TWO, ONE), (THREE, TWO, ONE))]
    assert moves.recoveries == 1, "those that waited may go to the new one"


def test_the_same_again_changes_nothing() -> None:
    moves = Moves(ONE, TWO)
    before = moves.fleet.upstreams
    moves.fleet.replace([ONE, TWO, ONE])
    assert (moves.fleet.upstreams, moves.told, moves.recoveries) == (before, [], 0)


def test_one_that_leaves_stays_until_its_last_sample_is_over() -> None:
    moves = Moves(ONE)
    (one,) = moves.fleet.upstreams
    one.in_flight = 2
    moves.fleet.replace([TWO])
    assert moves.available == [TWO]
    assert moves.told == [((TWO,), (TWO, ONE))]
    assert [state.draining for state in moves.fleet.states] == [False, True]
    one.in_flight = 1
    moves.tick(1.0)
    assert one in moves.fleet.upstreams
    with pytest.raises(NotFound, match=r"configured are h2:1$"):
        moves.fleet.drain(ONE, False)
    one.in_flight = 0
    moves.tick(2.0)
    assert one not in moves.fleet.upstreams
    assert moves.told[1:] == [((TWO,), (TWO,))]
    moves.fleet.checked(one, False, 3.0)  # a check that was under way


def test_a_name_is_free_once_nobody_has_it() -> None:
    moves = Moves(f"{ONE}/a")
    for path in ("b", "c"):
        moves.fleet.replace([f"{ONE}/{path}"])
        assert [upstream.name for upstream in moves.fleet.upstreams] == ["h1:1"]
    moves.fleet.upstreams[0].in_flight = 1
    moves.fleet.replace([f"{ONE}/d"])
    assert [upstream.name for upstream in moves.fleet.upstreams] == ["h1:1#2", "h1:1"]
    moves.fleet.replace([f"{ONE}/d", f"{ONE}/e"])
    names = [upstream.name for upstream in moves.fleet.upstreams]
    assert names == ["h1:1#2", "h1:1#3", "h1:1"]


def test_one_that_comes_back_before_it_has_left_is_the_same() -> None:
    moves = Moves(ONE)
    (one,) = moves.fleet.upstreams
    one.in_flight = 1
    moves.fleet.replace([TWO])
    moves.fleet.replace([ONE])
    assert moves.fleet.upstreams == (one,)
    assert moves.available == [ONE]


def test_an_idle_one_leaves_at_once() -> None:
    moves = Moves(ONE, TWO)
    moves.fleet.replace([TWO])
    assert moves.told == [((TWO,), (TWO,))]
    assert moves.recoveries == 0, "nothing came that could take samples"


def test_names_are_not_taken_twice() -> None:
    moves = Moves("http://h:1/a", "http://h:1/b")
    moves.fleet.upstreams[0].in_flight = 1
    moves.fleet.replace(["http://h:1/c", "http://h:1/b"])
    assert [upstream.name for upstream in moves.fleet.upstreams] == ["h:1#3", "h:1#2", "h:1"]
    moves.fleet.upstreams[2].in_flight = 0
    moves.tick(1.0)
    moves.fleet.replace(["http://h:1/d", "http://h:1/b"])
    assert [upstream.name for upstream in moves.fleet.upstreams] == ["h:1", "h:1#2"]


def test_none_at_all_is_told_with_its_reason() -> None:
    moves = Moves(ONE)
    moves.fleet.without = "none is published"
    moves.fleet.replace([])
    assert moves.admission.reasons == ["no upstream is available: none is published"]
    with pytest.raises(Overloaded):
        moves.admission.check()
    moves.fleet.replace([ONE])
    assert moves.admission.reasons == []


def test_who_asks_is_told_of_urls_that_do_not_work() -> None:
    moves = Moves(ONE, TWO)
    doubts: list[str] = []
    moves.fleet.doubted = doubts.append
    moves.fail(0, 1, Unavailable("refused"))
    moves.fail(0, 1, Unavailable("no port is left", ours=True))
    moves.fleet.checked(moves.fleet.upstreams[1], False, 0.0)
    moves.fleet.checked(moves.fleet.upstreams[1], True, 0.0)
    assert doubts == [ONE, TWO]


# --- over sockets ---------------------------------------------------------------------------------

pytestmark = pytest.mark.usefixtures("each_transport")


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[FakeUpstream, FakeUpstream]]:
    async with FakeUpstream().running() as old, FakeUpstream().running() as new:
        yield old, new


async def done(gateway: Driven, ids: list[str]) -> list[int]:
    answers = [await gateway.poll(request_id).response() for request_id in ids]
    return [answer.status for answer in answers]


async def submitted(gateway: Driven, numbers: range) -> list[str]:
    return [(await gateway.submit(number)).json()["request_id"] for number in numbers]


async def series(gateway: Driven, **labels: str) -> float:
    return metric((await gateway.client.get("/metrics")).body, "upstream_up", **labels)


async def test_running_samples_finish_and_the_others_go_to_the_new_one(
    each_transport: str,
) -> None:
    """The lean transport ends idle connections with their upstream, the other one in time."""
    keepalive_s = 600.0 if each_transport == "httptools" else 0.5
    flags = {"upstream__max_connections": 4, "upstream__keepalive_s": keepalive_s}
    async with two() as (old, new), driven(old.url, **flags) as gateway:
        await gateway.handshake()
        held = Held(old)
        ids = await submitted(gateway, range(8))  # four of them wait in line
        await held.running(4)
        gateway.gateway.fleet.replace([new.url])
        ids += await submitted(gateway, range(8, 12))
        name = old.url.removeprefix("http://")
        assert await series(gateway, upstream=name) == 1
        held.release()
        assert await done(gateway, ids) == [200] * 12
        assert (len(old.requests), len(new.requests)) == (4, 8)
        await gateway.advance(0.1)
        assert [state.name for state in gateway.gateway.fleet.states] == [
            new.url.removeprefix("http://")
        ]
        assert await series(gateway, upstream=name) == 0
        await until(lambda: old.open_connections == 0, 10.0)
        # And back to where its connections were.
        gateway.gateway.fleet.replace([old.url])
        assert await done(gateway, await submitted(gateway, range(20, 24))) == [200] * 4
        assert len(old.requests) == 8


async def test_samples_in_line_for_one_that_is_away_go_to_the_new_one_at_once() -> None:
    async with two() as (old, new), driven(old.url) as gateway:
        await gateway.handshake()
        await old.stop()
        ids: list[str] = []
        while (made := await gateway.submit(len(ids))).status == 200:
            ids.append(made.json()["request_id"])
        assert (made.status, gateway.gateway.fleet.available) == (429, [])
        gateway.gateway.fleet.replace([new.url])
        polls = [gateway.poll(request_id) for request_id in ids]
        for _ in range(20):
            await gateway.advance(0.1)
            await asyncio.sleep(0.01)
        assert [(await poll.response()).status for poll in polls] == [200] * len(ids)
        assert (await gateway.submit(99)).status == 200


async def test_what_the_new_one_serves_is_asked_at_once() -> None:
    """Until it has said so the last list stands, so that samplers made before go on."""
    async with two() as (old, new), driven(old.url) as gateway:
        serve(old, BASE, lora("run_1"))
        await gateway.client.get("/api/v1/get_server_capabilities")
        await gateway.gateway._catalog.refresh()
        serve(new, BASE, lora("run_2"))
        fleet, served = gateway.gateway.fleet, gateway.gateway._catalog._listing
        fleet.replace([])
        await asyncio.sleep(0.05)
        assert "run_1" in served.served
        fleet.replace([new.url])
        await until(lambda: "run_2" in served.served)
        assert "run_1" not in served.served
        # While one round is under way the next is not forgotten.
        fleet.replace([old.url])
        fleet.replace([new.url])
        fleet.replace([old.url])
        await until(lambda: "run_1" in served.served)
        assert "run_2" not in served.served


# --- settings that are read again ----------------------------------------------------------------


def test_the_same_settings_again_are_no_recovery() -> None:
    """In an outage that would send all again at once that the retry budget holds."""
    moves = Moves(ONE, TWO)
    moves.fail(0, 5, Unavailable("x"))
    moves.fleet.reconfigure(upstream_settings(ONE, TWO))
    assert moves.recoveries == 0
    assert moves.available == [TWO]
    moves.fleet.reconfigure(upstream_settings(ONE, TWO, THREE))
    assert moves.recoveries == 1
    assert moves.available == [TWO, THREE]


@pytest.mark.parametrize("half_open", [False, True])
def test_without_breakers_none_stays_open(half_open: bool) -> None:
    moves = Moves(ONE)
    (one,) = moves.fleet.upstreams
    moves.fail(0, 5, Unavailable("x"))
    if half_open:
        moves.tick(100.0)
        moves.fleet.probes(one, Told())
    assert one.breaker.state == (HALF_OPEN if half_open else OPEN)
    moves.fleet.reconfigure(upstream_settings(ONE, breaker_failures=0))
    assert (one.breaker.state, moves.available, one.probing) == (CLOSED, [ONE], {})
    assert moves.recoveries == 1
    moves.fail(0, 50, Unavailable("x"), now=101.0)
    assert moves.available == [ONE]


def upstream_settings(*urls: str, **others: int) -> UpstreamSettings:
    given = {"urls": list(urls), **others}
    flags = {f"upstream.{name}": value for name, value in given.items()}
    return load(flags, environ={}).settings.upstream
