"""The front door gives each request one answer, whatever its client sends besides."""

import asyncio

import pytest

from asgi_gateway.asgi import Receive, Scope, Send
from asgi_gateway.guarded import MAX_DISCARDED_BYTES
from asgi_gateway.refused import MAX_PIPELINED
from tests.support.bounded import CHUNKED, answer, prompt
from tests.support.guarded_app import guarded
from tests.support.raw_http import all_that_comes, one_answer, request, statuses, told


async def test_an_answer_before_the_body_is_the_only_one() -> None:
    """uvicorn would write a 400 after it when the rest of the body is broken."""
    async with guarded(prompt) as server:
        reader, writer = await server.connect()
        writer.write(CHUNKED)
        assert statuses(await one_answer(reader)) == [200]
        writer.write(b"nonsense\r\n")
        assert await all_that_comes(reader) == b""
        assert server.closed == {"malformed": 1}
        writer.close()


async def test_a_short_rest_of_a_body_is_read_and_the_connection_kept() -> None:
    async with guarded(prompt, keepalive_s=0.5) as server:
        reader, writer = await server.connect()
        writer.write(request(b"Content-Length: 1000", method=b"POST"))
        assert statuses(await one_answer(reader)) == [200]
        writer.write(bytes(1000) + request())
        assert statuses(await one_answer(reader)) == [200]
        assert await all_that_comes(reader) == b""  # idle for long enough
        assert server.closed == {}
        writer.close()


async def test_a_long_rest_of_a_body_is_not_read() -> None:
    async with guarded(prompt) as server:
        reader, writer = await server.connect()
        writer.write(request(b"Content-Length: 100000000", method=b"POST"))
        assert statuses(await one_answer(reader)) == [200]
        for _ in range(4):
            writer.write(bytes(MAX_DISCARDED_BYTES // 2))
        assert await all_that_comes(reader) == b""
        assert server.closed == {"unread_body": 1}
        writer.close()


async def test_an_answer_that_closes_reaches_a_client_that_still_sends() -> None:
    async def refuse(_: Scope, __: Receive, send: Send) -> None:
        headers = [(b"content-length", b"2"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b"no"})

    async with guarded(refuse) as server:
        for _ in range(10):
            reader, writer = await server.connect()
            writer.write(request(b"Content-Length: 8000000", method=b"POST"))
            for _ in range(20):
                writer.write(bytes(100_000))
                await asyncio.sleep(0)
            assert statuses(await all_that_comes(reader)) == [413]
            writer.close()


async def test_what_is_owed_goes_out_before_a_fault_ends_the_connection() -> None:
    async def slow(_: Scope, __: Receive, send: Send) -> None:
        await asyncio.sleep(0.1)
        await answer(send)

    async with guarded(slow) as server:
        for junk in (b"junk", b"GET / HTTP/1.1\r\nX Y\r\n\r\n", b"POST / HTTP/1.1\r\nX : y\r\n"):
            assert statuses(await told(server, request() + junk)) == [200]
        second = request(b"Transfer-Encoding: chunked", method=b"POST", body=b"zz\r\n")
        assert statuses(await told(server, request() + second)) == [200, 400]


@pytest.mark.parametrize("more", [0, 1])
async def test_requests_in_advance(more: int) -> None:
    async with guarded(prompt) as server:
        reader, writer = await server.connect()
        writer.write(request() * (1 + MAX_PIPELINED + more))
        for _ in range(1 + MAX_PIPELINED):
            assert statuses(await one_answer(reader)) == [200]
        if more:
            assert await all_that_comes(reader) == b""
        assert server.closed == ({"pipelined": 1} if more else {})
        writer.close()


async def test_an_upgrade_is_answered_and_is_the_last() -> None:
    async with guarded(prompt) as server:
        got = await told(server, request(b"Connection: upgrade", b"Upgrade: h2c") + request())
        assert statuses(got) == [200]
