"""Names of upstreams: looked up in the background, one look-up at a time, and what is gone drains.

The resolver below the loop is a fake; everything above it and all sockets are real. The name leads
to 127.0.0.1 and 127.0.0.2, which are two listeners on one port.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asgi_gateway.upstream import addresses as module
from asgi_gateway.upstream.addresses import Addresses
from tests.support.asgi_client import Response
from tests.support.gateway import Driven, driven
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import until

GOOD = answer(200, completion([11, 12], [-1.0, -2.0]))


class Resolver:
    """In the place of the loop's getaddrinfo, for one name; others are looked up as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.delay_s = 0.0
        self.broken = False
        self.asked = self.asking = self.most = 0
        self._others = asyncio.get_running_loop().getaddrinfo
        monkeypatch.setattr(
            asyncio.get_running_loop(), "getaddrinfo", self._getaddrinfo, raising=False
        )

    async def _getaddrinfo(self, host: str, port: int, **rest: Any) -> list[Any]:
        if host != "some.name":
            return await self._others(host, port, **rest)
        self.asked += 1
        self.asking += 1
        self.most = max(self.most, self.asking)
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.asking -= 1
        if self.broken:
            raise socket.gaierror(socket.EAI_AGAIN, "the resolver is down")
        return [(2, 1, 6, "", (address, port)) for address in self.addresses]


def url_of(upstream: FakeUpstream) -> str:
    return f"http://some.name:{upstream.url.rsplit(':', 1)[1]}"


async def outcome(gateway: Driven, seq_id: int) -> Response:
    promise = await gateway.submit(seq_id)
    assert promise.status == 200, promise.body
    async with asyncio.timeout(10):
        return await gateway.poll(promise.json()["request_id"]).response()


@contextlib.asynccontextmanager
async def ready(upstream: FakeUpstream, **flags: Any) -> AsyncIterator[Driven]:
    async with driven(url_of(upstream), upstream__health_interval_s=0, **flags) as gateway:
        await gateway.handshake()
        yield gateway


# --- the look-ups ---------------------------------------------------------------------------------


async def test_many_that_begin_together_share_the_first_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver, addresses = Resolver(monkeypatch, "127.0.0.1"), Addresses()
    resolver.delay_s = 0.05
    found = await asyncio.gather(*(addresses.resolved("some.name", 1) for _ in range(500)))
    assert found == [["127.0.0.1"]] * 500
    assert resolver.asked == 1


async def test_nobody_waits_for_a_slow_resolver_once_an_address_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver, addresses = Resolver(monkeypatch, "127.0.0.1"), Addresses()
    await addresses.resolved("some.name", 1)
    monkeypatch.setattr(module, "ADDRESSES_S", 0.05)
    resolver.delay_s = 3600.0
    async with asyncio.timeout(60):
        for _ in range(5000):
            await addresses.resolved("some.name", 1)
        await asyncio.sleep(0.1)
        for _ in range(5000):
            await addresses.resolved("some.name", 1)
    await until(lambda: resolver.asked == 2)
    assert resolver.most == 1
    await addresses.close()
    assert not resolver.asking


async def test_a_look_up_of_a_doubted_name_is_waited_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver, addresses = Resolver(monkeypatch, "127.0.0.1"), Addresses()
    await addresses.resolved("some.name", 1)
    resolver.addresses = ["127.0.0.2"]
    addresses.forget()
    assert await addresses.resolved("some.name", 1) == ["127.0.0.2"]
    resolver.addresses, resolver.delay_s = ["127.0.0.3"], 30.0
    monkeypatch.setattr(module, "DOUBT_EVERY_S", 0.0)
    monkeypatch.setattr(module, "DOUBT_WAIT_S", 0.02)
    addresses.forget()
    async with asyncio.timeout(5):
        assert await addresses.resolved("some.name", 1) == ["127.0.0.2"]
    await addresses.close()


async def test_one_that_is_away_does_not_make_a_storm_of_look_ups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver, addresses = Resolver(monkeypatch, "127.0.0.1"), Addresses()
    for _ in range(200):
        addresses.forget()
        await addresses.resolved("some.name", 1)
    assert resolver.asked <= 3


async def test_a_resolver_that_fails_leaves_the_last_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver, addresses = Resolver(monkeypatch, "127.0.0.1"), Addresses()
    resolver.broken = True
    for _ in range(2):
        with pytest.raises(OSError, match="the resolver is down"):
            await addresses.resolved("some.name", 1)
    resolver.broken = False
    await addresses.resolved("some.name", 1)
    resolver.broken = True
    addresses.forget()
    assert await addresses.resolved("some.name", 1) == ["127.0.0.1"]


async def test_an_address_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> list[Any]:
        raise AssertionError("looked up")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never, raising=False)
    for address in ("127.0.0.1", "::1"):
        assert await Addresses().resolved(address, 1) == [address]


# --- with a gateway -------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_transport")
async def test_new_connections_do_not_wait_for_a_slow_resolver(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = Resolver(monkeypatch, "127.0.0.1")
    async with ready(upstream, upstream__keepalive_s=0) as gateway:
        assert (await outcome(gateway, 0)).status == 200
        asked = resolver.asked
        resolver.delay_s = 3600.0
        monkeypatch.setattr(module, "ADDRESSES_S", 0.2)
        await asyncio.sleep(0.25)
        for seq_id in range(1, 100):
            assert (await outcome(gateway, seq_id)).status == 200
        assert resolver.asked == asked + 1
        assert len({request.connection for request in upstream.requests}) == 100


@pytest.mark.usefixtures("each_transport")
async def test_an_address_that_is_gone_drains_without_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its running sample ends there, its connections are not used again, the new one takes over."""
    resolver = Resolver(monkeypatch, "127.0.0.1")
    released = asyncio.Event()

    async def held(request: Request) -> Raw:
        if request.json()["max_tokens"] == 3:
            await released.wait()
        return GOOD

    async with FakeUpstream().running() as old:
        old.script = held
        new = FakeUpstream()
        port = int(old.url.rsplit(":", 1)[1])
        async with ready(old) as gateway, new.running(port, host="127.0.0.2"):
            assert (await outcome(gateway, 0)).status == 200
            first = (await gateway.submit(1, sampling_params={"max_tokens": 3})).json()
            assert (await outcome(gateway, 2)).status == 200
            resolver.addresses = ["127.0.0.2"]
            monkeypatch.setattr(module, "ADDRESSES_S", 0.0)
            await gateway.gateway._client.addresses.resolved("some.name", port)
            monkeypatch.setattr(module, "ADDRESSES_S", 1000.0)
            await until(lambda: resolver.asking == 0)
            await asyncio.sleep(0)
            seen = len(old.requests)
            for seq_id in range(10, 15):
                assert (await outcome(gateway, seq_id)).status == 200
            assert len(old.requests) == seen
            assert len(new.requests) == 5
            released.set()
            async with asyncio.timeout(5):
                assert (await gateway.poll(first["request_id"]).response()).status == 200
            assert (await outcome(gateway, 20)).status == 200
            assert len(old.requests) == seen
            await until(lambda: old.open_connections == 0)


@pytest.mark.usefixtures("each_transport")
async def test_no_port_left_is_waited_for_and_fails_no_sample(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's answer to a connect when all ephemeral ports are in use."""
    async with driven(upstream.url, upstream__health_interval_s=0) as gateway:
        await gateway.handshake()
        loop = asyncio.get_running_loop()

        async def connect(*_: object) -> None:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

        real = loop.sock_connect
        monkeypatch.setattr(loop, "sock_connect", connect, raising=False)
        promise = (await gateway.submit()).json()
        poll = gateway.poll(promise["request_id"])
        for _ in range(10):
            await gateway.advance(0.5)
            await asyncio.sleep(0.005)
        counted = gateway.gateway.fleet.upstreams[0].requests["unavailable"]
        assert counted >= 2
        early = poll.answered
        monkeypatch.setattr(loop, "sock_connect", real)
        for _ in range(40):
            await gateway.advance(0.5)
            await asyncio.sleep(0.01)
            if poll.answered:
                break
        async with asyncio.timeout(5):
            assert (early, (await poll.response()).status) == (False, 200)
