"""`asgi-gateway serve` as a process: its first line, how it refuses to start, how it stops."""

import asyncio
import contextlib
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import msgspec
import pytest

from asgi_gateway.kernel import accept_queue_limit
from tests.support.processes import (
    Served,
    deaf_port,
    environment,
    free_port,
    process,
    serve,
)
from tests.support.upstream import FakeUpstream, Raw, Request
from tests.support.waiting import event, until
from tests.support.wire import Remote, Wire, wire

pytestmark = pytest.mark.servers

COMMAND = [sys.executable, "-m", "asgi_gateway", "serve"]


@pytest.fixture
def silent(upstream: FakeUpstream) -> FakeUpstream:
    """An upstream that never answers."""

    async def script(request: Request) -> Raw:
        await asyncio.Event().wait()
        return Raw()

    upstream.script = script
    return upstream


async def parked(served: Served, count: int, stack: contextlib.AsyncExitStack) -> list[Wire]:
    """Connections with one parked poll each, for samples that do not end."""
    remote = Remote(served.port)
    await remote.handshake()
    ids = [await remote.submit() for _ in range(count)]
    connections = [await stack.enter_async_context(wire(served.port)) for _ in ids]
    for connection, request_id in zip(connections, ids, strict=True):
        remote.send_poll(connection, request_id)
    await remote.polls_parked(count)
    return connections


# --- start ----------------------------------------------------------------------------------------


async def test_the_first_line_says_where_it_listens(upstream: FakeUpstream) -> None:
    """And it accepts by then, at the first try."""
    with serve(upstream.url, server__backlog=128) as served:
        assert (await Remote(served.port).get("/api/v1/healthz")).status == 200
        remote = Remote(served.port)
        await remote.handshake()
        assert (await remote.poll(await remote.submit())).status == 200
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait) == 0
        assert served.process.stdout == f"asgi-gateway listening on {served.url}\n"
        assert served.process.stderr == ""


async def test_an_address_of_ipv6(upstream: FakeUpstream) -> None:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        command = [*COMMAND, "--host", "::1", "--port", "0", "--upstream", upstream.url]
        with process(command) as started:
            line = await asyncio.to_thread(started.first_line)
            assert line.startswith("asgi-gateway listening on http://[::1]:")
            port = int(line.rsplit(":", 1)[1])
            socket.create_connection(("::1", port), 2).close()


# Of struct tcp_info; of a listening socket it is the length of its accept queue (tcp(7), ss).
TCP_INFO_SACKED = struct.Struct("=28xI")


def test_the_kernels_limit_is_what_a_listener_gets() -> None:
    allowed = accept_queue_limit()
    assert allowed is not None
    for asked in (allowed - 1, allowed, allowed + 1):
        with socket.create_server(("127.0.0.1", 0), backlog=asked) as listener:
            info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SACKED.size)
            assert TCP_INFO_SACKED.unpack(info)[0] == min(asked, allowed)


def test_a_queue_that_the_kernel_shortens_is_said(upstream: FakeUpstream) -> None:
    allowed = accept_queue_limit()
    assert allowed is not None
    with serve(upstream.url, server__backlog=allowed + 1) as served:
        assert served.process.stderr.endswith(
            f" WARNING asgi_gateway.listeners: server.backlog = {allowed + 1} was asked, the kernel"
            f" allows {allowed} connections to wait: sysctl -w net.core.somaxconn={allowed + 1}\n"
        )
        assert served.process.stderr.count("\n") == 1


def test_a_queue_that_the_kernel_gives_is_not_worth_a_word(upstream: FakeUpstream) -> None:
    allowed = accept_queue_limit()
    assert allowed is not None
    with serve(upstream.url, server__backlog=allowed) as served:
        assert served.process.stderr == ""


def test_a_kernel_that_does_not_say(tmp_path: Path) -> None:
    assert accept_queue_limit(tmp_path / "absent") is None


def refused(command: list[str], **settings: object) -> str:
    """What a start that must fail with status 2 says; it says it on stderr and without a trace."""
    with process(command, environment(**settings)) as started:
        assert started.wait() == 2, started.story()
        assert started.stdout == ""
        assert "Traceback" not in started.stderr
        return started.stderr


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refused([*COMMAND, "--port", str(port), "--upstream", "http://127.0.0.1:1"])
    assert text.startswith("asgi-gateway: ")
    assert f"127.0.0.1:{port}" in text
    assert "in use" in text


def test_an_address_that_is_not_ours() -> None:
    command = [*COMMAND, "--host", "203.0.113.7", "--insecure", "--upstream", "http://127.0.0.1:1"]
    text = refused(command)
    assert "203.0.113.7:8000" in text


def test_a_host_that_does_not_exist() -> None:
    command = [*COMMAND, "--host", "no-such-host.invalid", "--insecure", "--upstream", "http://x:1"]
    text = refused(command)
    assert "no-such-host.invalid" in text


def test_no_upstream() -> None:
    text = refused([*COMMAND, "--port", "0"])
    assert "--upstream" in text
    assert "ASGI_GATEWAY_UPSTREAM__URLS" in text


def test_settings_that_are_wrong_are_all_named() -> None:
    text = refused(
        [*COMMAND, "--port", "0", "--upstream", "http://x:1"],
        poll__hold_s=1000,
        stroe__max_bytes=1,
    )
    assert "poll.hold_s" in text
    assert "store.max_bytes" in text


def test_a_sample_log_that_cannot_be_written(tmp_path: Path) -> None:
    command = [*COMMAND, "--port", "0", "--upstream", "http://127.0.0.1:1"]
    text = refused(command, log__samples=tmp_path / "absent" / "samples.jsonl")
    assert text.startswith("asgi-gateway: log.samples: cannot append to ")
    assert text.endswith("No such file or directory\n")


async def test_sample_lines_on_standard_output(upstream: FakeUpstream) -> None:
    with serve(upstream.url, log__samples="-") as served:
        remote = Remote(served.port)
        await remote.handshake()
        request_id = await remote.submit()
        assert (await remote.poll(request_id)).status == 200
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait) == 0
        listening, line = served.process.stdout.splitlines()
        assert listening == f"asgi-gateway listening on {served.url}"
        assert msgspec.json.decode(line)["request_id"] == request_id


async def test_an_upstream_that_is_down_at_the_start(upstream: FakeUpstream) -> None:
    """The gateway is healthy without it, says what is missing, and needs no restart after it."""
    port = free_port()
    with serve(f"http://127.0.0.1:{port}") as served:
        remote = Remote(served.port)
        assert (await remote.get("/api/v1/healthz")).status == 200
        session = (await remote.post("/api/v1/create_session", {})).json()["session_id"]
        body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "stand-in"}
        early = await remote.post("/api/v1/create_sampling_session", body)
        assert (early.status, early.headers[b"retry-after"]) == (503, b"1")
        assert "upstream" in early.json()["detail"]
        async with FakeUpstream().running(port):
            for _ in range(50):
                made = await remote.post("/api/v1/create_sampling_session", body)
                if made.status == 200:
                    break
                await asyncio.sleep(0.1)
            remote.sampling_session_id = made.json()["sampling_session_id"]
            assert (await remote.poll(await remote.submit())).status == 200


# --- stop -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stopping_answers_parked_polls_at_once(
    silent: FakeUpstream, number: signal.Signals
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        served = stack.enter_context(serve(silent.url, server__backlog=128))
        idle = await stack.enter_async_context(wire(served.port))
        assert (await idle.ask("GET", "/api/v1/healthz")).status == 200
        (connection,) = await parked(served, 1, stack)
        await until(lambda: silent.requests)
        began = time.monotonic()
        served.process.signal(number)
        held = await connection.read()
        assert time.monotonic() - began < 5  # a hold is 40 s
        assert (held.status, held.json()["type"]) == (408, "try_again")
        assert held.headers[b"connection"] == b"close"
        assert await connection.ended()
        assert await idle.ended()
        await event(silent.requests[0].hung_up)
        assert await asyncio.to_thread(served.process.wait) == 0
        assert time.monotonic() - began < 10
        told = "stopped with 1 samples unfinished, 0 results undelivered\n"
        assert served.process.stderr.endswith(f": {told}")
        assert served.process.stderr.count("\n") == 1


async def test_stopping_while_a_connect_to_the_upstream_hangs(upstream: FakeUpstream) -> None:
    """A host that answers no packet at all; the connect limit is a minute."""
    async with contextlib.AsyncExitStack() as stack:
        served = stack.enter_context(serve(upstream.url))
        remote = Remote(served.port)
        await remote.handshake()
        port = int(upstream.url.rsplit(":", 1)[1])
        await upstream.stop()
        stack.enter_context(deaf_port(port))
        await remote.submit()
        await asyncio.sleep(0.1)
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait, 4) == 0


async def test_idle_connections_live_as_long_as_the_setting_says(upstream: FakeUpstream) -> None:
    with serve(upstream.url, server__keepalive_s=1) as served:
        async with wire(served.port) as connection:
            for _ in range(2):
                assert (await connection.ask("GET", "/api/v1/healthz")).status == 200
                await asyncio.sleep(0.6)
            began = time.monotonic()
            assert await connection.ended()
            assert time.monotonic() - began < 1
