"""What a signal does under the plain command lines: the rows of the table in docs/servers.md.

`serve` has the whole of it (test_drain). uvicorn's handler is called by ours, after the drain; the
loops under hypercorn without workers and under granian tell their servers by themselves, so only
parked polls can be answered; hypercorn's worker is stopped without a signal.
"""

import asyncio
import contextlib
import os
import signal
import time

import pytest

from tests.support.processes import Served, all_under, stand_in, under
from tests.support.wire import SDK_HEADERS, Remote, Wire, poll, wire

pytestmark = pytest.mark.servers

MANY = 100
IN_ONE_PROCESS = ("--workers", "0", "--worker-class", "uvloop")


async def idle_and_parked(
    served: Served, stack: contextlib.AsyncExitStack
) -> tuple[list[Wire], list[Wire]]:
    """Connections that were answered once, and as many with a poll parked for one sample."""
    remote = Remote(served.port)
    await remote.handshake()
    request_id = await remote.submit()
    idle = [await stack.enter_async_context(wire(served.port)) for _ in range(MANY)]
    for connection in idle:
        assert (await connection.ask("GET", "/livez")).status == 200
    parked = [await stack.enter_async_context(wire(served.port)) for _ in range(MANY)]
    for connection in parked:
        connection.send("POST", "/api/v1/retrieve_future", *poll(request_id))
    await remote.polls_parked(MANY)
    return idle, parked


async def assert_let_go(idle: list[Wire], parked: list[Wire]) -> None:
    held = [await connection.read() for connection in parked]
    assert {reply.status for reply in held} == {408}
    assert {reply.headers[b"connection"].lower() for reply in held} == {b"close"}
    assert all([await connection.ended() for connection in (*idle, *parked)])


async def test_uvicorn_serves_on_until_the_drain_is_over() -> None:
    with (
        stand_in("--gen-seconds", "2") as upstream,
        under("uvicorn", upstream, drain__predrain_s=0.8, drain__grace_s=30) as served,
    ):
        remote = Remote(served.port)
        await remote.handshake()
        async with wire(served.port) as connection, wire(served.port) as idle:
            assert (await idle.ask("GET", "/livez")).status == 200
            running = remote.sample()
            submitted = await remote.post("/api/v1/asample", running)
            remote.send_poll(connection, submitted.json()["request_id"])
            await remote.polls_parked(1)
            served.process.terminate()
            await remote.until(lambda now: now["draining"] == 1)
            assert (await remote.get("/readyz")).status == 503
            later = await remote.submit()
            await remote.until(lambda now: now["draining"] == 2)
            refused = await remote.post("/api/v1/asample", remote.sample())
            assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
            again = await remote.post("/api/v1/asample", running)
            assert again.json() == submitted.json()
            assert (await connection.read()).status == 200
            assert (await remote.poll(later)).status == 200
            assert await idle.ended()
        # It ends itself with the signal that it got, once everything is closed.
        assert await asyncio.to_thread(served.process.wait) == -signal.SIGTERM
        assert "Traceback" not in served.process.stderr


async def test_parked_polls_are_answered_and_idle_connections_hold_nothing_up() -> None:
    """Fields 4.08 and 4.13. Under uvicorn by a second signal; hypercorn's worker has no handler and
    would die at once where its supervisor's signal goes to all processes, as systemd sends it."""
    commands = [
        ("uvicorn",),
        ("hypercorn", *IN_ONE_PROCESS),
        ("granian", "--loop", "uvloop"),
        ("hypercorn", "--graceful-timeout", "35"),
    ]
    drain = {"drain__predrain_s": 60, "drain__grace_s": 60}
    with (
        stand_in("--gen-seconds", "60") as upstream,
        all_under(commands, upstream, **drain) as (uvicorn, one_process, granian, supervised),
    ):
        async with contextlib.AsyncExitStack() as stack:
            connections = [
                await idle_and_parked(served, stack)
                for served in (uvicorn, one_process, granian, supervised)
            ]
            uvicorn.process.terminate()
            await Remote(uvicorn.port).until(lambda now: now["draining"] == 1)
            began = time.monotonic()
            for served in (uvicorn, one_process, granian):
                served.process.terminate()
            os.killpg(supervised.process.pid, signal.SIGTERM)
            for idle, parked in connections:
                await assert_let_go(idle, parked)
            for served in (uvicorn, one_process, granian, supervised):
                # uvicorn ends itself with the signal that it got, once everything is closed.
                expected = -signal.SIGTERM if served is uvicorn else 0
                status = await asyncio.to_thread(served.process.wait)
                assert status == expected, served.process.story()
                assert "Traceback" not in served.process.stderr
            assert time.monotonic() - began < 8


async def test_hypercorns_worker_where_the_signal_goes_to_the_supervisor() -> None:
    """We are not told: the hold is the bound, and results still go out on polls that wait."""
    with (
        stand_in("--gen-seconds", "1") as upstream,
        under("hypercorn", upstream) as served,
    ):
        remote = Remote(served.port)
        await remote.handshake()
        async with wire(served.port) as connection, wire(served.port) as idle:
            assert (await idle.ask("GET", "/livez", headers=SDK_HEADERS)).status == 200
            remote.send_poll(connection, await remote.submit())
            await remote.polls_parked(1)
            served.process.terminate()
            assert await idle.ended()
            assert (await connection.read()).status == 200
            assert await asyncio.to_thread(served.process.wait) == 0
        assert "Traceback" not in served.process.stderr
