"""The real nginx and HAProxy with the configurations that we ship, in front of a real `serve`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Served, serve
from tests.support.proxies import HOST, NAMES, Proxy, proxy
from tests.support.upstream import FakeUpstream, Raw, Request
from tests.support.wire import SDK_HEADERS, Remote, poll

pytestmark = [pytest.mark.system, pytest.mark.servers]

# Above what the proxies would wait by themselves for a step of a connection, 5 s.
HELD_S = 8.0


class Behind:
    """A gateway, the proxy before it and the upstream behind it."""

    def __init__(self, gateway: Served, proxy: Proxy, upstream: FakeUpstream) -> None:
        self.gateway = gateway
        self.proxy = proxy
        self.upstream = upstream
        self.remote = Remote(gateway.port)


@pytest.fixture(params=NAMES)
def behind(
    request: pytest.FixtureRequest, upstream: FakeUpstream, tmp_path: Path
) -> Iterator[Behind]:
    given = {"poll__hold_s": HELD_S, "state__dir": tmp_path / "state", "access__hosts": HOST}
    with (
        serve(upstream.url, **given) as gateway,
        proxy(request.param, tmp_path, [f"127.0.0.1:{gateway.port}"]) as before,
    ):
        yield Behind(gateway, before, upstream)


async def silent(request: Request) -> Raw:
    """An upstream that never answers."""
    await asyncio.Event().wait()
    return Raw()


async def test_a_sample_over_http_2(behind: Behind) -> None:
    """And fifty at once over that one connection, whose answers are what they are without it."""
    await behind.remote.handshake()
    async with behind.proxy.client() as client:

        async def sample(tokens: list[int]) -> bytes:
            body = behind.remote.sample(tokens)
            accepted = await client.post("/api/v1/asample", json=body)
            assert (accepted.status_code, accepted.http_version) == (200, "HTTP/2"), accepted.text
            asked, headers = poll(accepted.json()["request_id"])
            answer = await client.post("/api/v1/retrieve_future", json=asked, headers=headers)
            assert answer.status_code == 200, answer.text
            direct = await behind.remote.poll(asked["request_id"])
            assert direct.body == answer.content
            return answer.content

        await asyncio.gather(*(sample([n, n + 1]) for n in range(50)))


async def test_a_poll_that_is_held_survives(behind: Behind) -> None:
    """Its answer is the gateway's, whole, and the result comes by the next one."""
    release = asyncio.Event()
    answer = behind.upstream.script

    async def script(request: Request) -> Raw:
        await release.wait()
        return await answer(request)

    behind.upstream.script = script
    await behind.remote.handshake()
    request_id = await behind.remote.submit()
    async with behind.proxy.wire() as connection:
        began = asyncio.get_running_loop().time()
        behind.remote.send_poll(connection, request_id)
        held = await connection.read()
        assert held.status == 408, held.body
        assert held.json()["type"] == "try_again"
        assert held.json()["request_id"] == request_id
        assert asyncio.get_running_loop().time() - began >= HELD_S - 1
        behind.remote.send_poll(connection, request_id)  # the connection is good for another
        await behind.remote.polls_parked(1)
        release.set()
        assert (await connection.read()).status == 200


async def test_a_client_that_hangs_up_is_seen(behind: Behind) -> None:
    """Long before its hold ends; else its result would count as delivered."""
    behind.upstream.script = silent
    await behind.remote.handshake()
    request_id = await behind.remote.submit()
    async with behind.proxy.wire() as connection:
        behind.remote.send_poll(connection, request_id)
        await behind.remote.polls_parked(1)
        connection.hang_up(reset=True)
        await behind.remote.polls_parked(0, within_s=HELD_S / 2)
    async with behind.proxy.client() as client:
        asked, headers = poll(request_id)
        polling = asyncio.create_task(
            client.post("/api/v1/retrieve_future", json=asked, headers=headers)
        )
        await behind.remote.polls_parked(1)
        polling.cancel()
    await behind.remote.polls_parked(0, within_s=HELD_S / 2)


async def test_a_large_prompt_passes(behind: Behind) -> None:
    """Above every buffer of a proxy, below the gateway's own limit."""
    await behind.remote.handshake()
    body = behind.remote.sample([123_456] * 60_000)
    async with behind.proxy.wire() as connection:
        accepted = await connection.ask("POST", "/api/v1/asample", body, SDK_HEADERS)
        assert accepted.status == 200, accepted.body
    assert (await behind.remote.poll(accepted.json()["request_id"])).status == 200


@pytest.mark.parametrize("path", ["/metrics", "/admin", "/admin/state"])
async def test_what_is_not_for_clients(behind: Behind, path: str) -> None:
    async with behind.proxy.wire() as connection:
        assert (await connection.ask("GET", path)).status == 404
        assert b"asgi_gateway_" not in (await connection.ask("GET", path)).body


async def test_a_restart_behind_it(behind: Behind, tmp_path: Path) -> None:
    """A parked poll gets the gateway's answer, not the proxy's.

    What comes while there is no gateway waits in HAProxy for the next one; nginx refuses it.
    """
    behind.upstream.script = silent
    await behind.remote.handshake()
    request_id = await behind.remote.submit()
    async with behind.proxy.wire() as connection:
        behind.remote.send_poll(connection, request_id)
        await behind.remote.polls_parked(1)
        behind.gateway.process.terminate()
        behind.gateway.process.terminate()  # the second one does not wait for what is running
        answer = await connection.read()
        # Try again, or gone: either makes the SDK go on by itself. A proxy's own would be 502.
        assert answer.status in (408, 410), answer.body
        assert await asyncio.to_thread(behind.gateway.process.wait) == 0
    async with behind.proxy.wire() as connection:
        behind.remote.send_poll(connection, request_id)
        answered = asyncio.create_task(connection.read())
        if behind.proxy.name == "nginx":
            assert (await answered).status == 502
        port = str(behind.gateway.port)
        with serve(behind.upstream.url, "--port", port, state__dir=tmp_path / "state"):
            if behind.proxy.name == "nginx":
                behind.remote.send_poll(connection, request_id)
                answered = asyncio.create_task(connection.read())
            assert (await answered).status == 410
