"""No descriptors left: no busy loop, said once, not ready, and well again by itself.

What was measured under a limit of 256 with 600 clients, as the share of a core over three seconds:
uvloop accepts what comes and closes it at once (0.3%), granian leaves it waiting (0.7%), and
asyncio's own loop spins (61%, 4 MB of messages a second): docs/servers.md names uvloop.
"""

import asyncio
import contextlib
import functools
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.asgi_client import Response
from tests.support.processes import (
    Process,
    answers,
    environment,
    free_port,
    process,
    server_command,
)
from tests.support.upstream import FakeUpstream
from tests.support.wire import SDK_HEADERS, Remote, Wire, poll, wire

pytestmark = pytest.mark.servers

UPSTREAM_CONNECTIONS = 64
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def limited(descriptors: int, command: list[str], **settings: object) -> Iterator[Process]:
    """A process that may have so many and cannot raise it."""
    shell = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh"]
    settings["upstream__max_connections"] = UPSTREAM_CONNECTIONS
    with process([*shell, *command], environment(**settings)) as started:
        yield started


class Kept(Remote):
    """A client on one connection that it keeps."""

    def __init__(self, port: int, connection: Wire) -> None:
        super().__init__(port)
        self.connection = connection

    async def post(self, path: str, body: object) -> Response:
        return await self.connection.ask("POST", path, body, SDK_HEADERS)

    async def get(self, path: str) -> Response:
        return await self.connection.ask("GET", path, headers=SDK_HEADERS)

    async def poll(self, request_id: str) -> Response:
        return await self.connection.ask("POST", "/api/v1/retrieve_future", *poll(request_id))


@contextlib.asynccontextmanager
async def kept(port: int) -> AsyncIterator[Kept]:
    async with wire(port) as connection:
        client = Kept(port, connection)
        await client.handshake()
        yield client


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


async def assert_quiet(started: Process) -> None:
    """Less than a fifth of a core."""
    before, began = cpu_s(started.pid), time.monotonic()
    await asyncio.sleep(1)
    assert cpu_s(started.pid) - before < 0.2 * (time.monotonic() - began)


async def test_serve_lets_in_no_more_than_leaves_room_for_upstreams(
    upstream: FakeUpstream,
) -> None:
    """Further clients wait in the kernel's queue, and get in when others leave."""
    command = [sys.executable, "-m", "asgi_gateway", "serve", "--port", "0"]
    with limited(256, [*command, "--upstream", upstream.url], server__backlog=512) as started:
        line = await asyncio.to_thread(started.first_line)
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(kept(int(line.rsplit(":", 1)[1])))
            assert (await client.get("/readyz")).status == 200
            many = [await stack.enter_async_context(wire(client.port)) for _ in range(200)]
            many[-1].send("GET", "/livez")
            await client.until(lambda now: now["descriptors_exhausted_total"] == 1)
            unready = await client.get("/readyz")
            assert unready.status == 503
            (reason,) = unready.json()["reasons"]
            assert reason.endswith("client connections are open, which is all there may be")
            await assert_quiet(started)
            assert (await client.poll(await client.submit())).status == 200
            for connection in many[:100]:
                connection.hang_up()
            assert (await many[-1].read()).status == 200, "it only had to wait"
            assert (await client.get("/readyz")).status == 200
            assert (await client.metrics())["descriptors_exhausted_total"] == 1
        assert started.stderr.count("which is all there may be") == 1
        assert "Traceback" not in started.stderr


async def test_a_sample_that_finds_no_descriptor_waits_for_one(upstream: FakeUpstream) -> None:
    servers = ("uvicorn", "granian")
    ports = [free_port() for _ in servers]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                limited(
                    96,
                    server_command(server, port, "--loop", "uvloop"),
                    upstream__urls=upstream.url,
                )
            )
            for server, port in zip(servers, ports, strict=True)
        ]
        for one, port in zip(started, ports, strict=True):
            await asyncio.to_thread(one.wait_for, functools.partial(answers, port), "answer")
        await asyncio.gather(*(_waits(one, port) for one, port in zip(started, ports, strict=True)))


async def _waits(started: Process, port: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(kept(port))
        many = [await stack.enter_async_context(wire(port)) for _ in range(120)]
        await client.until(lambda now: now["descriptors_exhausted_total"] == 1)
        unready = await client.get("/readyz")
        assert unready.json()["reasons"] == ["no file descriptor is free"]
        request_id = await client.submit()
        await client.until(lambda now: now.get('retries_total{reason="unavailable"}', 0) > 0)
        await assert_quiet(started)  # of granian the supervisor alone
        for connection in many:
            connection.hang_up()
        assert (await client.poll(request_id)).status == 200
        async with asyncio.timeout(10):
            while (await client.get("/readyz")).status != 200:  # noqa: ASYNC110 - another's
                await asyncio.sleep(0.1)
    assert started.stderr.count("no file descriptor is free") == 1
    assert "Traceback" not in started.stderr
