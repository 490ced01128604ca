"""The client's side of one request, by hand-made servers."""

import asyncio
import socket
import time

import pytest

from asgi_gateway.asgi import ClientGone, Message, Receive, Scope, Send
from asgi_gateway.training.headers import declared_length, request_headers
from asgi_gateway.training.incoming import Incoming
from tests.support.asgi_client import AsgiClient, turns
from tests.support.waiting import until
from tests.training.conftest import opened


def scope_of(*headers: tuple[bytes, bytes]) -> Scope:
    return {"type": "http", "headers": headers}


def incoming(*messages: Message, length: int | None = None) -> Incoming:
    left = list(messages)

    async def receive() -> Message:
        return left.pop(0)

    headers = () if length is None else ((b"content-length", b"%d" % length),)
    return Incoming(scope_of(*headers), receive)


def part(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


GONE: Message = {"type": "http.disconnect"}


async def test_a_small_body_is_kept_whole() -> None:
    one = incoming(part(b"abc"))
    assert await one.begin()
    assert (one.whole, one.length) == (b"abc", 3)


async def test_a_large_body_in_one_message_is_cut() -> None:
    body = bytes(700_000)
    one = incoming(part(body))
    assert await one.begin()
    assert (one.whole, one.length) == (None, 700_000)
    pieces = [piece async for piece in one]
    assert b"".join(pieces) == body
    assert len(pieces) == 3


async def test_empty_messages_are_no_end() -> None:
    one = incoming(part(b"", more=True), part(b"a", more=True), part(b"", more=True), part(b""))
    assert await one.begin()
    assert (one.whole, one.length) == (None, None)
    assert [piece async for piece in one] == [b"a"]


async def test_a_body_shorter_than_its_length_breaks_off() -> None:
    one = incoming(part(b"ab", more=True), part(b""), length=3)
    assert await one.begin()
    with pytest.raises(ClientGone):
        assert [piece async for piece in one]
    await one.hung_up()


async def test_a_client_that_leaves() -> None:
    assert not await incoming(GONE).begin()
    one = incoming(part(b"a", more=True), GONE)
    assert await one.begin()
    with pytest.raises(ClientGone):
        assert [piece async for piece in one]
    await one.hung_up()
    one = incoming(part(b""), part(b""), GONE)
    assert await one.begin()
    await one.hung_up()


async def test_a_server_that_does_not_tell_is_not_asked_for_ever() -> None:
    one = incoming(*[part(b"") for _ in range(9)])
    assert await one.begin()
    watching = asyncio.create_task(one.hung_up())
    await turns()
    assert not watching.done()
    watching.cancel()


def test_a_chunked_body_has_no_length_whatever_else_is_said() -> None:
    length = (b"content-length", b"5")
    assert declared_length(scope_of(length)) == 5
    assert declared_length(scope_of(length, (b"transfer-encoding", b"chunked"))) is None


def test_header_values_that_are_no_utf8() -> None:
    scope = {**scope_of((b"x-old", b"caf\xe9"), (b"x-new", b"caf\xc3\xa9")), "client": None}
    headers = dict(request_headers(scope))
    assert (headers["x-old"], headers["x-new"]) == ("café", "café")
    assert headers["x-forwarded-for"] == "unknown"
    assert "x-forwarded-host" not in headers


async def test_a_connect_is_not_cancelled_half_way() -> None:
    """The client leaves while the trainer's host accepts nobody: its queue is full."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with opened(url, connect_timeout_s=0.3) as proxy:

            async def patient(scope: Scope, receive: Receive, send: Send) -> None:
                await proxy.forward(scope, receive, send, patience_s=60.0)

            began = time.monotonic()
            connection = AsgiClient(patient).start("GET", "/")
            await until(lambda: proxy.active == 1)
            await turns()
            connection.hang_up()
            await until(lambda: connection.answered)
            assert 0.25 < time.monotonic() - began < 5.0
