"""Metrics and the status page of several workers, asked of any of them."""

import contextlib
import signal
import stat
import time

import msgspec
import pytest

from tests.support.processes import Served, stand_in
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until
from tests.support.wire import SDK_HEADERS, Remote, series
from tests.support.workers import Member, Workers, another, counted, ended, on, wire_to, workers

pytestmark = pytest.mark.servers

SUCCEEDED = 'samples_total{outcome="succeeded"}'
CONFIRMED = {**SDK_HEADERS, "X-Admin-Action": "confirmed", "Host": "localhost"}


async def sampled(served: Workers, member: Member, count: int) -> None:
    async with on(served, member) as client:
        for _ in range(count):
            assert (await client.poll(await client.submit())).status == 200


async def asked(served: Served, connection_to: Member) -> dict[str, float]:
    """What one of them says of all."""
    assert isinstance(served, Workers)
    async with wire_to(served, connection_to) as connection:
        return series(await connection.ask("GET", "/metrics"))


async def test_the_sum_is_exact_whoever_is_asked(upstream: FakeUpstream) -> None:
    with workers(upstream.url, 3) as served:
        members = served.members()
        for member, count in zip(members, (1, 2, 4), strict=True):
            await sampled(served, member, count)
            assert counted(member.own_metrics(), SUCCEEDED) == count
            assert counted(member.own_metrics(), "samples_held") == count
        for member in members:
            said = await asked(served, member)
            assert said[SUCCEEDED] == 7
            assert said["samples_held"] == 7
            assert said["sessions"] == 3
            assert said["sample_duration_seconds_count"] == 7
            assert said['sample_duration_seconds_bucket{le="+Inf"}'] == 7
            assert said['stage_seconds_count{stage="upstream"}'] == 7
            assert said["ready"] == 1
            assert said["draining"] == 0
            assert (said["workers"], said["workers_answered"]) == (3, 3)


async def test_what_the_dead_had_counted_stays(upstream: FakeUpstream) -> None:
    """A kill takes what was never shown, a clean end nothing."""
    with workers(upstream.url) as served:
        members = served.members()
        for member, count in zip(members, (3, 5), strict=True):
            await sampled(served, member, count)
        assert (await asked(served, members[0]))[SUCCEEDED] == 8
        members[1].kill()
        fresh = await another(served, members)
        said = await asked(served, members[0])
        assert said[SUCCEEDED] == 8
        assert said["samples_held"] == 3, "it holds none any more"
        assert said["worker_deaths_total"] == 1
        await sampled(served, fresh, 2)
        served.process.signal(signal.SIGUSR2)
        await until(lambda: "restart is done" in served.process.stderr, 60)
        said = await Remote(served.port).metrics()
        assert said[SUCCEEDED] == 10, "what nobody had asked for was handed over"
        assert said["worker_deaths_total"] == 1
        assert (said["workers"], said["workers_answered"]) == (2, 2)


async def test_one_that_does_not_answer_is_said_and_its_counts_stay(upstream: FakeUpstream) -> None:
    with workers(upstream.url) as served:
        asks, silent = served.members()
        for member, count in ((asks, 1), (silent, 2)):
            await sampled(served, member, count)
        async with wire_to(served, asks) as connection:
            assert series(await connection.ask("GET", "/metrics"))[SUCCEEDED] == 3
            async with silent.frozen():
                began = time.monotonic()
                said = series(await connection.ask("GET", "/metrics"))
                assert 0.9 < time.monotonic() - began < 3
            assert said[SUCCEEDED] == 3
            assert said["samples_held"] == 1
            assert (said["workers"], said["workers_answered"]) == (2, 1)
            assert series(await connection.ask("GET", "/metrics"))["workers_answered"] == 2


async def test_nobody_else_may_ask_them(upstream: FakeUpstream) -> None:
    with workers(upstream.url) as served:
        for member in served.members():
            assert stat.S_IMODE(member.path.stat().st_mode) == 0o600
            assert stat.S_IMODE(member.folder.stat().st_mode) == 0o700


async def test_the_status_page_shows_all() -> None:
    with (
        stand_in("--gen-seconds", "60") as upstream,
        workers(upstream) as served,
    ):
        async with contextlib.AsyncExitStack() as stack:
            sessions = []
            for member, count in zip(served.members(), (2, 3), strict=True):
                client = await stack.enter_async_context(on(served, member))
                for _ in range(count):
                    await client.submit()
                sessions.append(client.sampling_session_id)
            for member in served.members():
                async with wire_to(served, member) as connection:
                    answer = await connection.ask("GET", "/admin/state", headers=CONFIRMED)
                state = msgspec.json.decode(answer.body)
                assert (state["workers"], state["workers_answered"]) == (2, 2)
                assert state["samples"]["running"] == 5
                assert state["sessions"] == 2
                held = {holder["sampling_session_id"]: holder for holder in state["holders"]}
                assert [held[session]["running"] for session in sessions] == [2, 3]
                assert state["upstreams"][0]["in_flight"] == 5


async def test_an_upstream_is_drained_in_all(upstream: FakeUpstream) -> None:
    with workers(upstream.url) as served:
        one, two = served.members()
        for draining, shown in ((True, 1), (False, 0)):
            body = {"upstream": upstream.url, "draining": draining}
            async with wire_to(served, one) as connection:
                answer = await connection.ask("POST", "/admin/upstream", body, CONFIRMED)
            assert answer.status == 200, answer.body
            name = upstream.url.removeprefix("http://")
            for member in (one, two):
                text = member.own_metrics()
                assert counted(text, f'upstream_draining{{upstream="{name}"}}') == shown


async def test_a_drain_from_the_status_page_ends_all(upstream: FakeUpstream) -> None:
    with workers(upstream.url) as served:
        async with wire_to(served, served.members()[0]) as connection:
            answer = await connection.ask("POST", "/admin/drain", {}, CONFIRMED)
            assert answer.status == 200, answer.body
        assert await ended(served.process) == 0, served.process.story()
