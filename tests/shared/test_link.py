"""The link before a server that says what a test wants."""

import asyncio
import random
import time
from typing import Any

import pytest

from asgi_gateway.clock import SystemClock
from asgi_gateway.shared.backoff import FIRST_S, MOST_S, Backoff
from asgi_gateway.shared.errors import (
    MissingExtra,
    NotSent,
    Overfull,
    ServerError,
    Unanswered,
)
from asgi_gateway.shared.link import Link
from tests.shared.linked import TIMEOUT_S, Replies, linked, told, trouble_of
from tests.support.fake_valkey import FakeValkey, bulk, hello
from tests.support.processes import deaf_port, free_port
from tests.support.waiting import until


async def test_commands_of_one_turn_are_one_write() -> None:
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        replies, before = Replies(), fake.reads
        fake.answers["ECHO"] = lambda command: bulk(command[1])
        for number in range(200):
            link.call(number % 256, ["ECHO", str(number)], replies.append)
        assert fake.reads == before
        await told(replies, 200)
        assert replies == [str(number).encode() for number in range(200)]
        # One write that fits in one segment of the loopback, so one read.
        assert fake.reads == before + 1


async def test_arguments_arrive_as_they_were_given() -> None:
    every = bytes(range(256))
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        assert await link.ask(0, ["SET", "ü\r\n", every, -7, b"", 1 << 62]) == b"OK"
        seen = [b"SET", "ü\r\n".encode(), every, b"-7", b"", str(1 << 62).encode()]
        assert fake.commands[-1] == seen


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b":7\r\n", 7),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"*0\r\n", []),
        (b"*3\r\n:1\r\n$-1\r\n*1\r\n$2\r\n\r\n\r\n", [1, None, [b"\r\n"]]),
        (b"+fine\r\n", b"fine"),
    ],
)
async def test_replies_of_all_kinds(said: bytes, expected: object) -> None:
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        fake.answers["GET"] = said
        assert await link.ask(0, ["GET", "x"]) == expected


async def test_a_reply_in_many_pieces_is_one() -> None:
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        fake.answers["GET"] = b""
        asked = asyncio.ensure_future(link.ask(0, ["GET", "x"]))
        await until(lambda: fake.commands[-1:] == [[b"GET", b"x"]])
        for byte in bulk(b"a\r\nb" * 5):
            fake.say(bytes([byte]))
            await asyncio.sleep(0)
        assert await asked == b"a\r\nb" * 5


async def test_a_server_s_error_is_told_by_its_code() -> None:
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        fake.answers["SET"] = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
        with pytest.raises(ServerError, match="used memory") as caught:
            await link.ask(0, ["SET", "x", "1"])
        assert caught.value.code == "OOM"
        assert link.up


async def test_a_caller_that_fails_hurts_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    def fails(reply: object) -> None:
        raise KeyError("of the caller")

    async with FakeValkey().running() as fake, linked(fake.url) as link:
        replies = Replies()
        link.call(0, ["GET", "x"], fails)
        link.call(0, ["GET", "y"], replies.append)
        assert await told(replies, 1) == [b"OK"]
        assert "of the caller" in caplog.text
        assert link.up
        caplog.clear()


async def test_a_call_from_within_a_reply_goes_out_too() -> None:
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        replies = Replies()
        link.call(0, ["A"], lambda _: link.call(0, ["B"], replies.append))
        assert await told(replies, 1) == [b"OK"]
        assert fake.commands[-2:] == [[b"A"], [b"B"]]


# --- bounds --------------------------------------------------------------------------------------


async def test_no_more_commands_wait_than_may() -> None:
    async with FakeValkey().running() as fake, linked(fake.url, max_waiting=5) as link:
        fake.answers["GET"] = b""
        replies, refused = Replies(), Replies()
        for _ in range(5):
            link.call(0, ["GET", "x"], replies.append)
        link.call(0, ["GET", "x"], refused.append)
        assert refused == []  # never from within the call
        await told(refused, 1)
        assert refused.kinds == ["Overfull"]
        # What was sent and not answered waits too.
        await until(lambda: len(fake.commands) >= 5)
        with pytest.raises(Overfull, match="at most 5"):
            await link.ask(0, ["GET", "x"])
        fake.say(b"+a\r\n" * 5)
        assert await told(replies, 5) == [b"a"] * 5
        fake.answers["GET"] = b"+b\r\n"
        assert await link.ask(0, ["GET", "x"]) == b"b"


async def test_no_more_bytes_wait_than_may() -> None:
    async with FakeValkey().running() as fake, linked(fake.url, max_waiting_bytes=2000) as link:
        fake.answers["SET"] = b""
        replies = Replies()
        link.call(0, ["SET", "x", b"y" * 1500], replies.append)
        with pytest.raises(Overfull, match="bytes"):
            await link.ask(0, ["SET", "x", b"y" * 1500])
        assert link.waiting_bytes < 2000
        await until(lambda: len(fake.commands) >= 1)
        fake.say(b"+a\r\n")
        assert await told(replies, 1) == [b"a"]


async def test_a_server_that_does_not_read_holds_only_what_may_wait() -> None:
    """The rest is refused, and in the transport are a few writes and no more."""
    piece = b"y" * 100_000
    options: dict[str, Any] = {"max_waiting_bytes": 20_000_000, "timeout_s": 5.0}
    async with FakeValkey().running() as fake, linked(fake.url, **options) as link:
        fake.stop_reading()
        replies = Replies()
        for _ in range(250):
            link.call(0, ["SET", "x", piece], replies.append)
            await asyncio.sleep(0)
        await until(lambda: len(replies) >= 50)
        assert set(replies.kinds) == {"Overfull"}
        wire = link._by_group[0].wire  # type: ignore[attr-defined]
        assert wire.paused
        assert wire._transport.get_write_buffer_size() < 1_000_000
        assert link.waiting_bytes <= 20_000_000
        fake.read_again()
        await told(replies, 250)
        assert replies.count(b"OK") == 250 - replies.kinds.count("Overfull") >= 190


async def test_a_server_that_never_reads_again_is_left() -> None:
    piece = b"y" * 1_000_000
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        fake.stop_reading()
        replies = Replies()
        for _ in range(16):
            link.call(0, ["SET", "x", piece], replies.append)
        await told(replies, 16)
        assert set(replies.kinds) == {"NotSent", "Unanswered"}
        fake.read_again()
        await until(lambda: link.up)
        assert fake.connections >= 2


# --- time ----------------------------------------------------------------------------------------


async def test_a_server_that_says_nothing_is_left_after_the_timeout() -> None:
    async with FakeValkey().running() as fake, linked(fake.url) as link:
        fake.answers["GET"] = b""
        began = time.monotonic()
        with pytest.raises(Unanswered, match="nothing for 1 s"):
            await link.ask(0, ["GET", "x"])
        assert TIMEOUT_S <= time.monotonic() - began < TIMEOUT_S + 1.0
        await until(lambda: link.up)
        assert fake.connections == 2


async def test_a_slow_reply_is_too_late_for_its_caller_alone() -> None:
    """While others are answered the connection stays, and a late reply is nobody else's."""
    async with FakeValkey().running() as fake, linked(fake.url, timeout_s=0.5) as link:
        fake.answers.update(SLOW=b"", FAST=b"")
        slow, fast = Replies(), Replies()
        link.call(0, ["FAST"], fast.append)
        link.call(0, ["SLOW"], slow.append)
        await until(lambda: len(fake.commands) >= 2)
        async with asyncio.timeout(5):
            while not slow:
                # Something of the first reply, from time to time: the server is at work.
                fake.say(b"$1000\r\n" if not fast and fake.answers["FAST"] == b"" else b"x")
                fake.answers["FAST"] = b"-"
                await asyncio.sleep(0.05)
        assert slow.kinds == fast.kinds == ["Unanswered"]
        assert link.up
        assert fake.connections == 1
        assert link.waiting == 2, "their places are kept"
        fake.hang_up()
        await until(lambda: link.waiting == 0)


async def test_a_late_reply_is_dropped() -> None:
    async with FakeValkey().running() as fake, linked(fake.url, timeout_s=0.5) as link:
        fake.answers.update(SLOW=b"")
        slow, next_one = Replies(), Replies()
        link.call(0, ["SLOW"], slow.append)
        await until(lambda: len(fake.commands) >= 1)
        # Half of a reply, so that the connection is not silent when the first is too late.
        await asyncio.sleep(0.3)
        fake.say(b"$4\r\nla")
        await told(slow, 1)
        link.call(0, ["NEXT"], next_one.append)
        fake.say(b"te\r\n")
        assert await told(next_one, 1) == [b"OK"]
        assert slow.kinds == ["Unanswered"]
        assert fake.connections == 1


async def test_what_was_not_sent_says_so_after_the_timeout() -> None:
    async with linked(f"valkey://127.0.0.1:{free_port()}", up=False) as link:
        began = time.monotonic()
        with pytest.raises(NotSent, match="ConnectionRefused"):
            await link.ask(0, ["GET", "x"])
        assert TIMEOUT_S <= time.monotonic() - began < TIMEOUT_S + 1.0


async def test_a_command_waits_for_a_server_that_comes() -> None:
    fake = FakeValkey()
    fake.port = free_port()
    async with linked(fake.url, up=False, timeout_s=5.0) as link:
        replies = Replies()
        link.call(0, ["GET", "x"], replies.append)
        await asyncio.sleep(0.1)
        assert replies == []
        async with fake.running():
            assert await told(replies, 1) == [b"OK"]
            assert link.up
            assert link.down_since is None


async def test_a_server_that_takes_no_connection_ends_the_try() -> None:
    port = free_port()
    with deaf_port(port):
        began = time.monotonic()
        assert "no connection within 0.3 s" in await trouble_of(
            f"valkey://127.0.0.1:{port}", timeout_s=0.3
        )
        assert time.monotonic() - began < 2.0


async def test_a_loop_that_stood_still_costs_no_replies() -> None:
    """The replies are in the socket, and time is up: they count."""
    value = b"x" * 50_000
    async with FakeValkey().running() as fake, linked(fake.url, timeout_s=0.5) as link:
        replies = Replies()
        fake.answers["GET"] = b""
        for _ in range(60):
            link.call(0, ["GET", "x"], replies.append)
        await until(lambda: len(fake.commands) >= 60)
        fake.say(bulk(value) * 60)
        time.sleep(1.0)  # noqa: ASYNC251 - that is the fault
        # More than one piece, the first of which the loop reads before it looks at the time.
        await told(replies, 60)
        assert set(replies) == {value}


async def test_an_idle_server_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asgi_gateway.shared.node.IDLE_S", 0.2)
    async with FakeValkey().running() as fake, linked(fake.url, timeout_s=0.3) as link:
        pings = fake.pings
        await until(lambda: fake.pings > pings)
        assert link.up
        fake.answers["PING"] = b""
        await until(lambda: not link.up)
        assert "nothing for 0.3 s" in link.trouble


# --- connecting ----------------------------------------------------------------------------------


async def test_what_was_sent_is_unanswered_and_the_rest_goes_out_again() -> None:
    async with FakeValkey().running() as fake, linked(fake.url, timeout_s=5.0) as link:
        fake.answers["GET"] = b""
        replies = Replies()
        link.call(0, ["GET", "sent"], replies.append)
        await until(lambda: len(fake.commands) >= 1)
        fake.hang_up()
        await told(replies, 1)
        assert replies.kinds == ["Unanswered"]
        fake.answers["GET"] = b"+OK\r\n"
        link.call(0, ["GET", "waited"], replies.append)
        await told(replies, 2)
        assert replies[1] == b"OK"
        assert [c[1] for c in fake.commands if c[0] == b"GET"] == [b"sent", b"waited"]


async def test_a_server_that_hangs_up_at_once_is_not_hammered() -> None:
    """Each try waits twice as long as the one before, as long as none lasts."""
    async with FakeValkey().running() as fake:
        fake.answers["HELLO"] = None
        async with linked(fake.url, up=False, random=lambda: 1.0) as link:
            began = time.monotonic()
            await until(lambda: fake.connections >= 4)
            # 0.05 + 0.1 + 0.2
            assert time.monotonic() - began >= 0.3
            assert not link.up
            assert "closed" in link.trouble


def test_backoff_doubles_up_to_a_bound_with_full_jitter() -> None:
    backoff = Backoff(lambda: 1.0)
    waits = [backoff.next_s() for _ in range(10)]
    assert waits[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert waits[-1] == MOST_S
    backoff.reset()
    assert backoff.next_s() == FIRST_S
    assert Backoff(lambda: 0.0).next_s() == 0.0
    some = Backoff(random.Random(1).random)
    assert len({some.next_s() for _ in range(10)}) == 10


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"role": "replica"}, "is a replica"),
        ({"mode": "cluster"}, "is not a server by itself"),
        ({"mode": "sentinel"}, "is not a server by itself"),
        ({"version": "6.2.14"}, "version '6.2.14'; it takes 7 or newer"),
        ({"version": "\x1b[31m"}, r"version '\\x1b[31m'"),
    ],
)
async def test_a_server_of_another_kind_is_not_used(fields: dict[str, str], why: str) -> None:
    async with FakeValkey().running() as fake:
        fake.answers["HELLO"] = hello(**fields)
        assert why in await trouble_of(fake.url)


async def test_a_password_that_a_server_quotes_is_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Old servers do, of a command that they do not know."""
    async with FakeValkey().running() as fake:
        fake.answers["HELLO"] = lambda command: b"-ERR unknown: %b\r\n" % b" ".join(command)
        url = fake.url.replace("://", "://user:s3cret@")
        trouble = await trouble_of(url)
        assert "AUTH user (hidden)" in trouble
        assert "s3cret" not in trouble + caplog.text
        assert "(hidden)" in caplog.text


async def test_credentials_are_asked_for_before_each_login() -> None:
    given: list[str] = []

    def credentials() -> tuple[str, str]:
        given.append(f"secret{len(given)}")
        return "user", given[-1]

    async with FakeValkey().running() as fake:
        seen: list[bytes] = []
        fake.answers["HELLO"] = lambda command: seen.append(command[4]) or hello()  # type: ignore[func-returns-value]
        async with linked(fake.url, credentials=credentials) as link:
            fake.hang_up()
            await until(lambda: len(seen) >= 2)
            await until(lambda: link.up)
        assert seen == [b"secret0", b"secret1"]


async def test_it_is_told_once_that_a_server_is_away_and_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = FakeValkey()
    async with fake.running(), linked(fake.url) as link:
        fake.answers["HELLO"] = None
        fake.hang_up()
        await until(lambda: fake.connections >= 4)
        assert not link.up
        del fake.answers["HELLO"]
        await until(lambda: link.up)
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition("127")[0] + line[-12:] for line in said[:1]] != []
    assert ["is not there" in line for line in said] == [True, False]
    assert "is there again" in said[1]


# --- closing -------------------------------------------------------------------------------------


async def test_closing_tells_everybody() -> None:
    async with FakeValkey().running() as fake:
        replies = Replies()
        async with linked(fake.url) as link:
            fake.answers["GET"] = b""
            link.call(0, ["GET", "sent"], replies.append)
            await until(lambda: len(fake.commands) >= 1)
            link.call(0, ["GET", "not sent"], replies.append)
            await link.close()
            assert replies.kinds == ["Unanswered", "NotSent"]
            link.call(0, ["GET", "too late"], replies.append)
            await told(replies, 3)
            assert "not open" in str(replies[2])


async def test_before_it_is_open_nothing_is_sent() -> None:
    link = Link(
        "valkey://h", timeout_s=1, max_waiting=9, max_waiting_bytes=999, clock=SystemClock()
    )
    assert (link.up, link.trouble) == (False, "not open")
    with pytest.raises(NotSent, match="not open"):
        await link.ask(0, ["PING"])


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "libvalkey", None)
    with pytest.raises(MissingExtra, match=r"pip install 'asgi-gateway\[valkey\]'"):
        Link("valkey://h", timeout_s=1, max_waiting=1, max_waiting_bytes=1, clock=SystemClock())
