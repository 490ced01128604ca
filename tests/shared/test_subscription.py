"""What is published, and that nobody is left to believe that he heard it all."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asgi_gateway.shared.link import Link
from asgi_gateway.shared.subscription import Subscription
from tests.shared.linked import linked
from tests.support.fake_valkey import FakeValkey, bulk
from tests.support.valkey import cluster, valkey
from tests.support.waiting import until

CHANNEL = "agw:to:0123456789"
GAP = "gap"
SUBSCRIBED = b"*3\r\n" + bulk("subscribe") + bulk(CHANNEL) + b":1\r\n"


def message(text: str | bytes, channel: str = CHANNEL) -> bytes:
    return b"*3\r\n" + bulk("message") + bulk(channel) + bulk(text)


def heard_by(link: Link) -> tuple[list[bytes | str], Subscription]:
    heard: list[bytes | str] = []
    return heard, link.subscribe(CHANNEL, heard.append, lambda: heard.append(GAP))


@pytest.fixture
async def fake() -> AsyncIterator[FakeValkey]:
    async with FakeValkey().running() as running:
        running.answers["SUBSCRIBE"] = SUBSCRIBED
        yield running


@pytest.mark.system
async def test_messages_come_in_order(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        async with linked(server.url) as link:
            heard, subscription = heard_by(link)
            await until(lambda: subscription.up)
            for number in range(1000):
                link.call(None, ["PUBLISH", CHANNEL, number], lambda _: None)
            link.call(None, ["PUBLISH", CHANNEL, b"\xff\r\n\0"], lambda _: None)
            link.call(None, ["PUBLISH", CHANNEL + "1", "another's"], lambda _: None)
            await until(lambda: len(heard) >= 1002)
            numbers = [str(number).encode() for number in range(1000)]
            assert heard == [GAP, *numbers, b"\xff\r\n\0"]
            await link.unsubscribe(subscription)
            assert await link.ask(None, ["PUBLISH", CHANNEL, "x"]) == 0


@pytest.mark.system
async def test_a_gap_is_told_after_each_reconnect(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        async with linked(server.url) as link:
            heard, subscription = heard_by(link)
            await until(lambda: subscription.up)
            server.kill()
            await until(lambda: not subscription.up)
            server.start()
            await until(lambda: subscription.up)
            await link.ask(None, ["PUBLISH", CHANNEL, "after"])
            await until(lambda: len(heard) >= 3)
            assert heard == [GAP, GAP, b"after"]


@pytest.mark.system
async def test_a_frozen_server_is_a_gap(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        async with linked(server.url, timeout_s=0.5) as link:
            heard, subscription = heard_by(link)
            await until(lambda: subscription.up)
            with server.frozen():
                await until(lambda: not subscription.up)
                assert "nothing for 0.5 s" in subscription.trouble
            await until(lambda: subscription.up)
            assert heard == [GAP, GAP]


@pytest.mark.system
async def test_a_quiet_channel_is_no_gap(tmp_path: Path) -> None:
    with valkey(tmp_path) as server:
        async with linked(server.url, timeout_s=0.2) as link:
            heard, subscription = heard_by(link)
            await until(lambda: subscription.up)
            pings = server.calls("ping")
            await until(lambda: server.calls("ping") >= pings + 3)
            assert subscription.up
            assert heard == [GAP]


@pytest.mark.system
async def test_in_a_cluster_any_member_tells_what_another_was_told(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        async with linked(servers.url) as link:
            heard, subscription = heard_by(link)
            await until(lambda: subscription.up)
            for group in (0, 1, 2):
                key = f"{{agw:{group:02x}}}"
                publish = "return redis.call('PUBLISH', ARGV[1], ARGV[2])"
                await link.ask(group, ["EVAL", publish, "1", key, CHANNEL, key])
            await until(lambda: len(heard) >= 4)
            assert sorted(map(str, heard[1:])) == [f"b'{{agw:{group:02x}}}'" for group in range(3)]


async def test_a_subscription_before_open_begins_with_it(fake: FakeValkey) -> None:
    async with linked(fake.url) as link:
        await link.close()
        heard, subscription = heard_by(link)
        assert not subscription.up
        await link.open()
        await until(lambda: subscription.up)
        assert heard == [GAP]


@pytest.mark.parametrize(
    "said",
    [
        b"+what\r\n",
        b":1\r\n",
        b"*0\r\n",
        b"-ERR no\r\n",
        message("x", "another channel"),
        b"*3\r\n" + bulk("message") + bulk(CHANNEL) + b":7\r\n",
        b"*4\r\n" + bulk("pmessage") + bulk("*") + bulk(CHANNEL) + bulk("x"),
        SUBSCRIBED,
        b"$-9\r\n",
    ],
)
async def test_anything_else_ends_the_connection(fake: FakeValkey, said: bytes) -> None:
    async with linked(fake.url) as link:
        heard, subscription = heard_by(link)
        await until(lambda: subscription.up)
        fake.say(message("before") + said + message("after"))
        await until(lambda: len(heard) >= 3)
        assert heard == [GAP, b"before", GAP]


async def test_a_subscription_that_is_refused_is_tried_again(fake: FakeValkey) -> None:
    fake.answers["SUBSCRIBE"] = b"-NOPERM no permissions to access one of the channels\r\n"
    async with linked(fake.url) as link:
        heard, subscription = heard_by(link)
        await until(lambda: "NOPERM" in subscription.trouble)
        assert not subscription.up
        assert heard == []
        fake.answers["SUBSCRIBE"] = SUBSCRIBED
        await until(lambda: subscription.up)
        assert heard == [GAP]


async def test_a_subscription_that_is_never_confirmed_is_tried_again(fake: FakeValkey) -> None:
    fake.answers["SUBSCRIBE"] = b""
    async with linked(fake.url, timeout_s=0.3) as link:
        _, subscription = heard_by(link)
        await until(lambda: "nothing for 0.3 s" in subscription.trouble)
        fake.answers["SUBSCRIBE"] = SUBSCRIBED
        await until(lambda: subscription.up)


async def test_a_listener_that_fails_hears_the_next(
    fake: FakeValkey, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[bytes] = []

    def fails(text: bytes) -> None:
        heard.append(text)
        raise KeyError("of the listener")

    async with linked(fake.url) as link:
        subscription = link.subscribe(CHANNEL, fails, lambda: None)
        await until(lambda: subscription.up)
        fake.say(message("one") + message("two"))
        await until(lambda: len(heard) == 2)
        assert caplog.text.count("\nKeyError: 'of the listener'") == 2
        assert subscription.up


async def test_after_its_close_nothing_is_heard(fake: FakeValkey) -> None:
    async with linked(fake.url) as link:
        heard, subscription = heard_by(link)
        await until(lambda: subscription.up)
        fake.say(message("too late"))
        await link.unsubscribe(subscription)
        await asyncio.sleep(0.02)
        assert heard == [GAP]
        assert not subscription.up
