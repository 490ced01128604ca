"""The front door's bounds of a request's body: its time, its framing and its trailers."""

import asyncio
import contextlib

import pytest

from asgi_gateway.asgi import Receive, Scope, Send
from asgi_gateway.refused import MAX_FRAMING_BYTES, MAX_HEADERS
from tests.support.bounded import CHUNKED, LONG, SHORT_S, answer, reading
from tests.support.guarded_app import guarded
from tests.support.raw_http import WITHIN_S, all_that_comes, one_answer, request, statuses, told


@pytest.mark.parametrize(
    "sent", [LONG, LONG + b"x" * 100, CHUNKED, CHUNKED + b"5\r\nab"], ids=range(4)
)
async def test_a_body_that_stops_is_answered_408(sent: bytes) -> None:
    async with guarded(reading, body_idle_s=SHORT_S) as server:
        got = await told(server, sent)
        assert statuses(got) == [408]
        assert b"no byte of the body" in got
        assert server.closed == {"body_timeout": 1}


async def test_a_body_that_drips_is_answered_408() -> None:
    async with guarded(reading, body_idle_s=1.0, body_s=SHORT_S) as server:
        reader, writer = await server.connect()
        writer.write(LONG)

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"y" * 100)
                    await writer.drain()
                    await asyncio.sleep(0.02)

        dripping = asyncio.ensure_future(drip())
        got = await all_that_comes(reader)
        assert statuses(got) == [408]
        assert b"bytes of the body in" in got
        dripping.cancel()
        writer.close()


async def test_a_long_body_that_keeps_coming_has_more_time() -> None:
    """1 MB in over a second, where 0.3 s and 16 s more for its size are given."""
    async with guarded(reading, body_idle_s=1.0, body_s=0.3) as server:
        reader, writer = await server.connect()
        writer.write(LONG)
        for _ in range(20):
            writer.write(bytes(50_000))
            await asyncio.sleep(0.06)
        assert (await one_answer(reader)).endswith(b"1000000")
        assert server.closed == {}
        writer.close()


@pytest.mark.parametrize("expect", [(), (b"Expect: 100-continue",)], ids=["paused", "continue"])
async def test_no_time_runs_while_the_application_does_not_read(expect: tuple[bytes, ...]) -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(1.2)
        await reading(scope, receive, send)

    async with guarded(late, body_idle_s=0.2, body_s=0.2) as server:
        reader, writer = await server.connect()
        body = bytes(300_000)
        writer.write(request(b"Content-Length: 300000", *expect, method=b"POST"))
        if expect:
            async with asyncio.timeout(WITHIN_S):
                assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        # The first part fills what uvicorn takes in before it pauses reading.
        writer.write(body)
        assert (await one_answer(reader)).endswith(b"300000")
        assert server.closed == {}
        writer.close()


async def test_a_chunked_body_that_is_mostly_framing_is_refused() -> None:
    async with guarded(reading) as server:
        reader, writer = await server.connect()
        writer.write(CHUNKED)
        await asyncio.sleep(0.05)
        sent = 0
        while not server.closed:
            writer.write(b"1\r\nx\r\n" * 100)
            await writer.drain()
            sent += 600
            assert sent < 4 * MAX_FRAMING_BYTES + (1 << 20)
            await asyncio.sleep(0.001)  # the server's thread may have to wait for a core
        assert statuses(await all_that_comes(reader)) == [400]
        writer.close()


async def test_an_endless_chunk_extension_is_refused() -> None:
    async with guarded(reading) as server:
        reader, writer = await server.connect()
        writer.write(CHUNKED + b"5;")
        await asyncio.sleep(0.05)
        for _ in range(2 * MAX_FRAMING_BYTES // 1000):
            writer.write(b"x" * 1000)
        assert statuses(await all_that_comes(reader)) == [400]
        assert server.closed == {"malformed": 1}
        writer.close()


async def test_a_chunked_body_in_usual_chunks_is_read() -> None:
    async with guarded(reading) as server:
        reader, writer = await server.connect()
        writer.write(CHUNKED)
        for _ in range(200):
            writer.write(b"3e8\r\n" + bytes(1000) + b"\r\n")
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        assert (await one_answer(reader)).endswith(b"200000")
        writer.close()


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"", b"a: b\r\n" * 10),
        (b"", b"X: " + b"y" * 1000 + b"\r\n"),
        (b"X: ", b"y" * 1000),
    ],
    ids=["many", "long", "value"],
)
async def test_endless_trailers_are_refused(start: bytes, piece: bytes) -> None:
    """Behind so much data that they are not mostly framing."""
    async with guarded(reading) as server:
        reader, writer = await server.connect()
        writer.write(CHUNKED)
        for _ in range(64):
            writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n" + start)
        sent = 0
        while not server.closed and sent < 3 << 20:  # less than the data
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(0.001)
        writer.write_eof()
        got = await all_that_comes(reader)
        assert statuses(got) == [400]
        assert b"trailers" in got
        assert server.closed == {"malformed": 1}
        writer.close()


async def test_as_many_trailers_as_headers_are_taken() -> None:
    async with guarded(reading) as server:
        reader, writer = await server.connect()
        writer.write(CHUNKED + b"1\r\nx\r\n0\r\n")
        for n in range(MAX_HEADERS):
            writer.write(b"X-%d: y\r\n" % n)
            await asyncio.sleep(0)
        writer.write(b"\r\n")
        assert (await one_answer(reader)).endswith(b"1")
        assert server.closed == {}
        writer.close()


async def test_trailers_do_not_become_headers() -> None:
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.extend(name for name, _ in scope["headers"])
        await answer(send)

    async with guarded(app) as server:
        reader, writer = await server.connect()
        writer.write(CHUNKED + b"1\r\nx\r\n")
        await asyncio.sleep(0.05)
        writer.write(b"0\r\nX-API-Key: stolen\r\n\r\n")
        assert statuses(await one_answer(reader)) == [200]
        assert seen == [b"transfer-encoding"]
        writer.close()
