"""Workers that die: the others go on, new ones come, and what waits to be accepted is served."""

import asyncio
import contextlib
import signal
import time
from pathlib import Path

import pytest

from tests.support.processes import stand_in
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until
from tests.support.wire import Remote, wire
from tests.support.workers import another, ended, on, wire_to, workers

pytestmark = pytest.mark.servers

WAITING = 40
# On a machine that does nothing else it is 0.4 s.
REPLACED_S = 10.0


async def test_the_others_go_on_when_one_is_killed(upstream: FakeUpstream) -> None:
    with workers(upstream.url) as served:
        lost, stays = served.members()
        async with on(served, lost) as broken, on(served, stays) as client:
            first = await client.submit()
            lost.kill()
            assert await broken.connection.ended()
            began = time.monotonic()
            assert (await client.poll(first)).status == 200
            assert (await client.poll(await client.submit())).status == 200
            fresh = await another(served, [lost, stays], REPLACED_S)
            assert time.monotonic() - began < REPLACED_S
            assert fresh.slot == lost.slot, "it has the journal of the one before"
            async with on(served, fresh) as newer:
                assert (await newer.poll(await newer.submit())).status == 200
        said = f"worker 0 (process {lost.pid}) ended with signal SIGKILL; another one is started\n"
        assert said in served.process.stderr
        assert "Traceback" not in served.process.stderr


async def test_connections_that_wait_to_be_accepted_outlive_all_workers(
    upstream: FakeUpstream,
) -> None:
    """They are in the queue of the socket, which the supervisor holds."""
    with workers(upstream.url) as served:
        async with contextlib.AsyncExitStack() as stack:
            members = served.members()
            for member in members:
                await stack.enter_async_context(member.frozen())
            clients = [await stack.enter_async_context(wire(served.port)) for _ in range(WAITING)]
            for client in clients:
                client.send("GET", "/livez")
            for member in members:
                member.kill()
            answers = await asyncio.gather(*(client.read() for client in clients))
            assert {answer.status for answer in answers} == {200}


async def test_connections_that_wait_are_served_by_those_that_stay(upstream: FakeUpstream) -> None:
    with workers(upstream.url) as served:
        async with contextlib.AsyncExitStack() as stack:
            killed, stays = served.members()
            async with killed.frozen(), stays.frozen():
                clients = [await stack.enter_async_context(wire(served.port)) for _ in range(40)]
                for client in clients:
                    client.send("GET", "/livez")
                killed.kill()
                await until(lambda: not killed.here)
            answers = await asyncio.gather(*(client.read() for client in clients))
            assert {answer.status for answer in answers} == {200}


async def test_one_that_keeps_dying_is_tried_again_later_and_later(tmp_path: Path) -> None:
    """Its settings cannot be read any more; when they can, it is there again."""
    file = tmp_path / "gateway.toml"
    with stand_in() as url:
        good = f'upstream.urls = ["{url}"]\n'
        file.write_text(good)
        with workers(url, config=file) as served:
            lost, stays = served.members()
            async with on(served, stays) as client:
                file.write_text("poll.hold_s = 1000\n")
                lost.kill()
                stderr = served.process
                for delay in ("0.5", "1", "2"):
                    text = f"ended with status 2; another one is started in {delay} s"
                    await until(lambda text=text: text in stderr.stderr, 20)  # type: ignore[misc]
                assert [member.pid for member in served.accepting()] == [stays.pid]
                assert "poll.hold_s" in served.process.stderr, "it says what is wrong"
                assert (await client.poll(await client.submit())).status == 200
                file.write_text(good)
                await another(served, [lost, stays])
            for _ in range(5):
                assert (await Remote(served.port).get("/livez")).status == 200


async def test_one_that_is_told_to_end_by_hand_drains_and_is_replaced(
    upstream: FakeUpstream,
) -> None:
    with workers(upstream.url, drain__grace_s=20) as served:
        left, stays = served.members()
        async with on(served, left) as client:
            request_id = await client.submit()
            async with wire_to(served, left) as other:
                left.signal(signal.SIGTERM)
                client.send_poll(other, request_id)
                assert (await other.read()).status == 200
            await another(served, [left, stays])
        served.process.terminate()
        assert await ended(served.process) == 0
