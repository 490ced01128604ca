"""/livez says that the process serves; /readyz whether new samples should come here."""

import asyncio

from tests.support.gateway import Driven, driven
from tests.support.processes import free_port
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until


def asks(gateway: Driven) -> bool:
    return gateway.gateway._catalog._listing._refreshing is not None


async def asked(gateway: Driven) -> None:
    """What /readyz began in the background is over."""
    await until(lambda: not asks(gateway))


async def test_ready_once_an_upstream_has_answered(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        first = await gateway.client.get("/readyz")
        assert (first.status, first.json()["ready"]) == (503, False)
        assert len(first.json()["reasons"]) == 1
        assert "upstream" in first.json()["reasons"][0]
        await asked(gateway)
        ready = await gateway.client.get("/readyz")
        assert (ready.status, ready.json()) == (200, {"ready": True, "reasons": []})


async def test_an_upstream_that_comes_late_makes_it_ready_without_any_other_request() -> None:
    port = free_port()
    async with driven(f"http://127.0.0.1:{port}") as gateway:
        assert (await gateway.client.get("/readyz")).status == 503
        await asked(gateway)
        async with FakeUpstream().running(port):
            # Probes do not ask the upstream again at once.
            assert (await gateway.client.get("/readyz")).status == 503
            assert not asks(gateway)
            gateway.clock.advance(2.0)
            assert (await gateway.client.get("/readyz")).status == 503
            await asked(gateway)
            assert (await gateway.client.get("/readyz")).status == 200


async def test_an_upstream_that_hangs_holds_no_probe() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read()
        writer.close()
        hung_up.set()

    reached, hung_up = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with driven(f"http://127.0.0.1:{port}") as gateway:
        for path, status in (("/readyz", 503), ("/livez", 200), ("/readyz", 503)):
            answer = await asyncio.wait_for(gateway.client.get(path), 1.0)
            assert answer.status == status
        await asyncio.wait_for(reached.wait(), 5.0)
    await asyncio.wait_for(hung_up.wait(), 5.0)
    server.close()


async def test_stopping_is_not_ready_and_alive(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        assert (await gateway.client.get("/readyz")).status == 200
        gateway.gateway.stop_holding()
        stopping = await gateway.client.get("/readyz")
        assert stopping.status == 503
        assert stopping.json() == {"ready": False, "reasons": ["the gateway is stopping"]}
        alive = await gateway.client.get("/livez")
        assert (alive.status, alive.json()) == (200, {"status": "ok"})


async def test_only_get(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        for path in ("/livez", "/readyz", "/openapi.json"):
            refused = await gateway.client.post(path)
            assert (refused.status, refused.headers[b"allow"]) == (405, b"GET")
