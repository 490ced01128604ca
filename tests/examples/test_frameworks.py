"""The programs of examples/embed with FastAPI and Starlette in them, under every server."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.contract.sdk import Sdk
from tests.examples.sampled import API, answering, tokens
from tests.support.processes import SERVERS, Served, free_port, process, server_command
from tests.support.programs import configured, listens, programs, stopped
from tests.support.upstream import FakeUpstream, Raw, Request
from tests.support.wire import Remote, wire

pytestmark = [pytest.mark.servers, pytest.mark.asyncio(loop_scope="module")]

MOUNTED = {"mounted_fastapi": "FastAPI", "mounted_starlette": "Starlette"}
AROUND = ("wrapped_fastapi", "middleware")
PREFIXES = {**dict.fromkeys(MOUNTED, "/tinker"), **dict.fromkeys(AROUND, "")}
each = pytest.mark.parametrize("name", PREFIXES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with answering(21).running() as running:
        yield running


@pytest.fixture(scope="module", params=SERVERS)
def started(request: pytest.FixtureRequest, upstream: FakeUpstream) -> Iterator[dict[str, Served]]:
    environ = configured(upstream.url, poll__hold_s=1)
    with programs(request.param, dict.fromkeys(PREFIXES, environ)) as running:
        yield running
        for name, served in running.items():
            assert "Traceback" not in served.process.stderr, (name, served.process.story())


def remote_of(started: dict[str, Served], name: str) -> Remote:
    return Remote(started[name].port, PREFIXES[name])


@each
async def test_a_sample(started: dict[str, Served], name: str) -> None:
    remote = remote_of(started, name)
    assert await tokens(remote) == [21]
    assert (await remote.get("/readyz")).status == 200


@each
async def test_a_poll_that_is_held_ends_with_its_hold_and_with_its_client(
    started: dict[str, Served], upstream: FakeUpstream, name: str
) -> None:
    """Through whatever the framework puts around the gateway."""
    remote = remote_of(started, name)
    await remote.handshake()
    answer, gate = upstream.script, asyncio.Event()

    async def held(request: Request) -> Raw:
        await gate.wait()
        return await answer(request)

    upstream.script = held
    try:
        request_id = await remote.submit()
        assert (await remote.poll(request_id)).status == 408
        async with wire(remote.port) as connection:
            remote.send_poll(connection, request_id)
            await remote.until(lambda now: now["polls_inflight"] == 1)
            connection.hang_up()
            await remote.until(lambda now: now["polls_inflight"] == 0)
    finally:
        upstream.script = answer
        gate.set()
    assert (await remote.poll(request_id)).status == 200


@pytest.mark.parametrize("name", MOUNTED)
async def test_beside_the_prefix_the_host_answers(started: dict[str, Served], name: str) -> None:
    host = Remote(started[name].port)
    assert (await host.get("/status")).json() == {"host": MOUNTED[name]}
    for path in (f"{API}/healthz", "/tinkered", "/"):
        assert (await host.get(path)).status == 404
    below = await host.get(f"/tinker{API}/no_such")
    assert (below.status, "no route" in below.json()["detail"]) == (404, True)


@pytest.mark.parametrize("name", AROUND)
async def test_what_is_not_the_gateways_is_fastapis(started: dict[str, Served], name: str) -> None:
    """Its routes, with the state of its lifespan, and its own 404."""
    remote = Remote(started[name].port)
    assert (await remote.get("/status")).json() == {"host": "FastAPI", "model": "loaded"}
    for path in ("/no/such", f"{API}/no_such"):
        missing = await remote.get(path)
        assert (missing.status, missing.json()) == (404, {"detail": "Not Found"})
    assert (await remote.get(f"{API}/healthz")).json() == {"status": "ok"}


@pytest.mark.sdk
async def test_the_sdk_samples_from_each(started: dict[str, Served], sdk: Sdk) -> None:
    for name, prefix in PREFIXES.items():
        (sampled,) = await asyncio.to_thread(
            sdk.ask,
            "samples",
            base_url=f"{started[name].url}{prefix}",
            cases=[{"prompt": [1, 2, 3], "params": {"max_tokens": 2}}],
        )
        assert [one["tokens"] for one in sampled["sequences"]] == [[21]], (name, sampled)


@pytest.mark.parametrize(
    ("name", "server", "flag", "stripped", "whole"),
    [
        ("mounted_fastapi", "uvicorn", "--root-path", 200, 404),
        ("mounted_fastapi", "hypercorn", "--root-path", 404, 200),
        ("mounted_fastapi", "granian", "--url-path-prefix", 404, 200),
        ("middleware", "uvicorn", "--root-path", 200, 404),
        ("middleware", "hypercorn", "--root-path", 200, 200),
        ("middleware", "granian", "--url-path-prefix", 200, 200),
    ],
)
async def test_behind_a_proxy_with_the_servers_own_flag(
    name: str, server: str, flag: str, stripped: int, whole: int, upstream: FakeUpstream
) -> None:
    """Below `/outer` at the proxy, which strips that from the path or passes it on whole."""
    port = free_port()
    application = f"examples.embed.{name}:create_app"
    command = server_command(server, port, flag, "/outer", application=application)
    with process(command, configured(upstream.url)) as started:
        await asyncio.to_thread(started.wait_for, lambda: listens(port), "listener")
        for prefix, status in (("", stripped), ("/outer", whole)):
            remote = Remote(port, prefix + PREFIXES[name])
            assert (await remote.get(f"{API}/healthz")).status == status, prefix
            if status == 200:
                assert await tokens(remote) == [21]


@each
async def test_the_lifespans_end_in_their_order(started: dict[str, Served], name: str) -> None:
    """The last test of a server: the host closes what it opened, the gateway what is inside it."""
    said = await asyncio.to_thread(stopped, started[name].process)
    ends = "the gateway is closed" if name in MOUNTED else "the gateway is still open"
    assert f"host: {ends}\n" in said
