"""Servers, or what stands between, that say what no server should."""

import asyncio
from typing import Any

import pytest

from asgi_gateway.shared.errors import ServerError, Unanswered
from tests.shared.linked import Replies, linked, told, trouble_of
from tests.support.fake_valkey import FakeValkey
from tests.support.waiting import until

GARBAGE = [
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"\x16\x03\x01\x02\x00",
    b"$-7\r\n",
    b"$99999999999999999999\r\n",
    b":12x\r\n",
    b"*-5\r\n",
    b"*99999999999999999999\r\n",
    b"*1000000000\r\n",
    b"*1\r\n" * 100_000 + b":1\r\n",
    b"(12x\r\n",
    b"#x\r\n",
]


@pytest.mark.parametrize("said", GARBAGE, ids=range(len(GARBAGE)))
async def test_what_cannot_be_read_ends_the_connection(said: bytes) -> None:
    """And nothing after it is taken for a reply."""
    async with FakeValkey().running() as fake, linked(fake.url, timeout_s=3.0) as link:
        fake.answers.update(FIRST=b"+fine\r\n", GET=said + b"\r\n+forged\r\n", NEXT=b"")
        replies = Replies()
        for name in ("FIRST", "GET", "NEXT"):
            link.call(0, [name], replies.append)
        await told(replies, 3)
        assert replies[0] == b"fine"
        assert replies.kinds[1:] == ["Unanswered", "Unanswered"]
        assert "cannot be read" in str(replies[1])
        await until(lambda: link.up)
        assert fake.connections == 2
        fake.answers["GET"] = b"+again\r\n"
        assert await link.ask(0, ["GET"]) == b"again"


@pytest.mark.parametrize("said", [b"+unasked\r\n", b"-ERR unasked\r\n", b">2\r\n+a\r\n+b\r\n"])
async def test_what_nobody_asked_for_ends_the_connection(said: bytes) -> None:
    """Else it would be the reply to the next command."""
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        fake.say(said)
        await until(lambda: fake.connections == 2)
        await until(lambda: link.up)
        assert "nobody had asked for" in link.trouble
        assert await link.ask(0, ["GET"]) == b"OK"


async def test_one_reply_too_many_reaches_nobody() -> None:
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        fake.answers["GET"] = b"+right\r\n+forged\r\n"
        assert await link.ask(0, ["GET"]) == b"right"
        await until(lambda: fake.connections == 2)


async def test_a_reply_without_end_is_bounded() -> None:
    limits: dict[str, Any] = {"max_reply_bytes": 100_000, "timeout_s": 5.0}
    async with FakeValkey().running() as fake, linked(fake.url, **limits) as link:
        fake.answers["GET"] = b"$1000000000\r\n" + b"x" * 150_000
        with pytest.raises(Unanswered, match="over 100000 bytes"):
            await link.ask(0, ["GET"])
        fake.answers["GET"] = b"$90000\r\n" + b"x" * 90_000 + b"\r\n"
        # Many that are not too large by themselves.
        replies = Replies()
        for _ in range(20):
            link.call(0, ["GET"], replies.append)
        await told(replies, 20)
        assert {len(reply) for reply in replies} == {90_000}


async def test_a_line_without_end_is_bounded() -> None:
    limits: dict[str, Any] = {"max_reply_bytes": 100_000, "timeout_s": 5.0}
    async with FakeValkey().running() as fake, linked(fake.url, **limits) as link:
        fake.answers["GET"] = b"+" + b"x" * 150_000
        with pytest.raises(Unanswered):
            await link.ask(0, ["GET"])


async def test_a_server_s_text_is_one_short_line() -> None:
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        fake.answers["GET"] = b"-ERR \x1b[31m\xff" + b"x" * 5000 + b"\r\n"
        with pytest.raises(ServerError) as caught:
            await link.ask(0, ["GET"])
        text = str(caught.value)
        assert text.isprintable()
        assert len(text) < 400


@pytest.mark.parametrize(
    "said",
    [b"+OK\r\n", b":1\r\n", b"*0\r\n", b"*1\r\n+mode\r\n", b"*2\r\n$-1\r\n:1\r\n", b"\0\0\0"],
)
async def test_a_greeting_of_another_kind(said: bytes) -> None:
    async with FakeValkey().running() as fake:
        fake.answers["HELLO"] = said
        assert await trouble_of(fake.url)


async def test_a_greeting_that_never_comes() -> None:
    async with FakeValkey().running() as fake:
        fake.answers["HELLO"] = b""
        assert "within 0.3 s" in await trouble_of(fake.url, timeout_s=0.3)


@pytest.mark.parametrize("at", range(1, 12))
async def test_a_reply_that_is_cut_reaches_nobody(at: int) -> None:
    whole = b"$5\r\nwhole\r\n"
    async with FakeValkey().running() as fake, linked(fake.url, timeout_s=3.0) as link:
        fake.answers["GET"] = b""
        asked = asyncio.ensure_future(link.ask(0, ["GET"]))
        await until(lambda: fake.commands[-1:] == [[b"GET"]])
        fake.say(whole[:at])
        if at < len(whole):
            await asyncio.sleep(0.01)
            fake.hang_up()
            with pytest.raises(Unanswered):
                await asked
        else:
            assert await asked == b"whole"


@pytest.mark.parametrize(
    "said",
    [b"-MOVED\r\n", b"-MOVED 1 h:1\r\n", b"-MOVED x y\r\n", b"-ASK 1 127.0.0.1:99999\r\n"],
)
async def test_a_server_by_itself_that_points_elsewhere_is_not_followed(said: bytes) -> None:
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        fake.answers["GET"] = said
        with pytest.raises(ServerError, match=r"MOVED|ASK"):
            await link.ask(0, ["GET"])


async def test_a_server_that_refuses_for_ever_costs_a_caller_the_timeout() -> None:
    async with FakeValkey().running() as fake, linked(fake.url, timeout_s=0.5) as link:
        fake.answers["GET"] = b"-LOADING reading from disk\r\n"
        replies = Replies()
        link.call(0, ["GET"], replies.append)
        await told(replies, 1)
        assert replies.kinds == ["NotSent"]
        assert "LOADING reading from disk" in str(replies[0])
        # With pauses in between, not as fast as it goes.
        assert 3 <= len([c for c in fake.commands if c[0] == b"GET"]) <= 40
