"""The end of several processes: by a signal, by two, by the death of their supervisor."""

import contextlib
import os
import signal
import time

import pytest

from tests.support.processes import stand_in
from tests.support.waiting import until
from tests.support.wire import Remote, Wire
from tests.support.workers import On, Workers, counted, ended, on, wire_to, workers

pytestmark = pytest.mark.servers

POLLS = 20


async def parked(served: Workers, stack: contextlib.AsyncExitStack) -> tuple[list[Wire], list[On]]:
    """Connections with a parked poll each, POLLS to every worker, and a client of every worker."""
    connections, clients = [], []
    for member in served.members():
        client = await stack.enter_async_context(on(served, member))
        request_id = await client.submit()
        for _ in range(POLLS):
            connection = await stack.enter_async_context(wire_to(served, member))
            client.send_poll(connection, request_id)
            connections.append(connection)
        await until(lambda m=member: counted(m.own_metrics(), "polls_inflight") == POLLS, 20)  # type: ignore[misc]
        clients.append(client)
    return connections, clients


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_each_drains(number: signal.Signals) -> None:
    """Running samples finish and go out on the polls that wait for them, on each worker."""
    async with contextlib.AsyncExitStack() as stack:
        upstream = stack.enter_context(stand_in("--gen-seconds", "4"))
        served = stack.enter_context(workers(upstream, drain__predrain_s=0.5, drain__grace_s=30))
        members = served.members()
        polls, clients = await parked(served, stack)
        served.process.signal(number)
        await until(lambda: served.process.stderr.count("draining for at most 30.5 s") == 2)
        for client in clients:
            assert (await client.get("/readyz")).status == 503
        assert {(await connection.read()).status for connection in polls} == {200}
        assert await ended(served.process) == 0, served.process.story()
        assert not [member for member in members if member.here]
        assert not members[0].folder.exists()
        assert "Traceback" not in served.process.stderr


async def test_a_second_signal_ends_the_drain() -> None:
    async with contextlib.AsyncExitStack() as stack:
        upstream = stack.enter_context(stand_in("--gen-seconds", "60"))
        served = stack.enter_context(workers(upstream, drain__predrain_s=60, drain__grace_s=60))
        polls, _ = await parked(served, stack)
        served.process.terminate()
        await until(lambda: served.process.stderr.count("draining for at most 120 s") == 2)
        began = time.monotonic()
        served.process.terminate()
        answers = [await connection.read() for connection in polls]
        assert {answer.status for answer in answers} == {408}
        assert {answer.headers[b"connection"] for answer in answers} == {b"close"}
        assert await ended(served.process) == 0, served.process.story()
        assert time.monotonic() - began < 10
        assert served.process.stderr.count("stopped with 1 samples unfinished") == 2


async def test_a_signal_to_all_processes_is_no_second_one() -> None:
    """As a terminal sends it, and a service manager that is not told otherwise."""
    async with contextlib.AsyncExitStack() as stack:
        upstream = stack.enter_context(stand_in("--gen-seconds", "4"))
        served = stack.enter_context(workers(upstream, drain__predrain_s=0, drain__grace_s=30))
        polls, _ = await parked(served, stack)
        os.killpg(served.process.pid, signal.SIGTERM)
        assert {(await connection.read()).status for connection in polls} == {200}
        assert await ended(served.process) == 0, served.process.story()


async def test_without_their_supervisor_they_drain_and_end() -> None:
    async with contextlib.AsyncExitStack() as stack:
        upstream = stack.enter_context(stand_in("--gen-seconds", "4"))
        served = stack.enter_context(workers(upstream, drain__predrain_s=0, drain__grace_s=30))
        members = served.members()
        polls, _ = await parked(served, stack)
        served.process.kill()
        await until(lambda: served.process.stderr.count("the supervisor is gone") == 2)
        assert {(await connection.read()).status for connection in polls} == {200}
        await until(lambda: not [member for member in members if member.here], 20)
        assert not members[0].folder.exists(), "the last one took it away"
        with pytest.raises(ConnectionRefusedError):
            await Remote(served.port).get("/livez")
        assert "Traceback" not in served.process.stderr


async def test_without_their_supervisor_a_second_signal_counts_again() -> None:
    async with contextlib.AsyncExitStack() as stack:
        upstream = stack.enter_context(stand_in("--gen-seconds", "60"))
        served = stack.enter_context(workers(upstream, drain__predrain_s=60, drain__grace_s=60))
        members = served.members()
        polls, _ = await parked(served, stack)
        served.process.kill()
        await until(lambda: served.process.stderr.count("draining for at most 120 s") == 2)
        for member in members:
            member.signal(signal.SIGTERM)
        assert {(await connection.read()).status for connection in polls} == {408}
        await until(lambda: not [member for member in members if member.here], 20)


async def test_a_signal_while_they_start_ends_them() -> None:
    with stand_in() as upstream, workers(upstream) as served:
        gone, _ = served.members()
        gone.kill()
        await until(lambda: "another one is started" in served.process.stderr)
        served.process.terminate()
        assert await ended(served.process) == 0, served.process.story()
        assert "Traceback" not in served.process.stderr
