"""The front door of `serve` before an application that does as a test wants."""

import asyncio
import contextlib
import logging

import pytest

from asgi_gateway.asgi import App, Receive, Scope, Send
from asgi_gateway.guarded import MAX_DISCARDED_BYTES
from asgi_gateway.refused import (
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    MAX_TARGET_BYTES,
)
from tests.support.guarded_app import guarded
from tests.support.raw_http import WITHIN_S, all_that_comes, one_answer, request, statuses, told
from tests.support.waiting import until

SHORT_S = 0.3


async def answer(send: Send, body: bytes = b"ok") -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def prompt(_: Scope, __: Receive, send: Send) -> None:
    """Answers without reading."""
    await answer(send)


async def reading(_: Scope, receive: Receive, send: Send) -> None:
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await answer(send, b"%d" % size)


def large(nbytes: int) -> App:
    body = bytes(nbytes)

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await answer(send, body)

    return app


# --- heads --------------------------------------------------------------------------------------


def with_headers(count: int) -> bytes:
    return request(*[b"X-%d: y" % n for n in range(count - 1)], b"Connection: close")


def with_target(nbytes: int) -> bytes:
    return request(b"Connection: close", target=b"/".ljust(nbytes, b"x"))


def with_head(nbytes: int) -> bytes:
    """Of so many bytes, counted as a name, a value, `: ` and the end of the line."""
    rest = nbytes - len(b"Connection: close\r\n") - len(b"X: \r\n")
    return request(b"Connection: close", b"X: " + b"y" * rest)


@pytest.mark.parametrize(
    ("limit", "made", "status"),
    [
        (MAX_HEADERS, with_headers, 431),
        (MAX_TARGET_BYTES, with_target, 414),
        (MAX_HEAD_BYTES, with_head, 431),
    ],
    ids=["headers", "target", "head"],
)
async def test_a_head_at_its_limits(limit: int, made: object, status: int) -> None:
    assert callable(made)
    async with guarded(prompt) as server:
        assert statuses(await told(server, made(limit - 1))) == [200]
        assert statuses(await told(server, made(limit))) == [200]
        assert server.closed == {}
        got = await told(server, made(limit + 1))
        assert statuses(got) == [status]
        assert b"the limit" in got
        assert server.closed == {"head_too_large": 1}


@pytest.mark.parametrize(
    ("start", "piece", "most", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: ", b"y" * 1000, MAX_HEAD_BYTES, 431),
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n", 10 * MAX_HEADERS, 431),
        (b"GET /", b"x" * 1000, 2 * MAX_TARGET_BYTES, 414),
    ],
    ids=["value", "headers", "target"],
)
async def test_an_endless_head_is_cut_off_at_its_limit(
    start: bytes, piece: bytes, most: int, status: int
) -> None:
    """Before its end, which never comes."""
    async with guarded(prompt) as server:
        reader, writer = await server.connect()
        writer.write(start)
        sent = 0
        while not server.closed and sent < most + (1 << 17):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(0)
        await until(lambda: bool(server.closed))
        assert statuses(await all_that_comes(reader)) == [status]
        writer.close()


@pytest.mark.parametrize("sent", [b"G", b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_head_that_is_not_finished_is_answered_408(sent: bytes) -> None:
    async with guarded(prompt, header_s=SHORT_S) as server:
        got = await told(server, sent)
        assert statuses(got) == [408]
        assert b"connection: close" in got
        assert server.closed == {"header_timeout": 1}


async def test_a_head_that_drips_has_no_more_time() -> None:
    async with guarded(prompt, header_s=SHORT_S) as server:
        reader, writer = await server.connect()

        async def drip() -> None:
            writer.write(b"GET / HTTP/1.1\r\nX: ")
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"y")
                    await writer.drain()
                    await asyncio.sleep(0.02)

        dripping = asyncio.ensure_future(drip())
        assert statuses(await all_that_comes(reader)) == [408]
        dripping.cancel()
        writer.close()


async def test_a_connection_that_never_says_a_word_is_closed_without_one() -> None:
    async with guarded(prompt, header_s=SHORT_S) as server:
        assert await told(server, b"") == b""
        assert server.closed == {"silent": 1}


async def test_an_idle_connection_has_its_own_time() -> None:
    async with guarded(prompt, header_s=0.1, keepalive_s=1.0) as server:
        reader, writer = await server.connect()
        for _ in range(2):
            writer.write(request(b"Host: x"))
            await one_answer(reader)
            # Past the time of a head, between two requests.
            await until(lambda: server.door.idle)
            await asyncio.sleep(0.3)
        # Blank lines begin no request.
        writer.write(b"\r\n")
        assert await all_that_comes(reader) == b""
        assert server.closed == {}
        writer.close()


async def test_no_time_runs_while_an_answer_is_owed() -> None:
    async def slow(_: Scope, __: Receive, send: Send) -> None:
        await asyncio.sleep(1.0)
        await answer(send)

    async with guarded(
        slow, keepalive_s=0.2, header_s=0.1, body_idle_s=0.1, body_s=0.1, write_s=0.1
    ) as server:
        reader, writer = await server.connect()
        writer.write(request(b"Content-Length: 2", method=b"POST", body=b"{}"))
        assert statuses(await one_answer(reader)) == [200]
        assert server.closed == {}
        writer.close()


async def test_no_time_runs_for_a_head_that_is_not_read() -> None:
    """Reading pauses while a request waits for the answer to the one before."""

    async def slow(_: Scope, __: Receive, send: Send) -> None:
        await asyncio.sleep(1.0)
        await answer(send)

    async with guarded(slow, header_s=0.2) as server:
        reader, writer = await server.connect()
        writer.write(request() * 2 + b"GET / HT")
        await asyncio.sleep(0.1)
        writer.write(b"TP/1.1\r\n\r\n")
        for _ in range(3):
            assert statuses(await one_answer(reader)) == [200]
        assert server.closed == {}
        writer.close()


async def test_a_sweep_that_fails_is_logged_and_not_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Faulty:
        def look(self, now: float, limit_s: float) -> bool:
            del server.door.writing[self]
            raise ZeroDivisionError

    async with guarded(prompt, header_s=SHORT_S) as server:
        reader, writer = await server.connect()
        await until(lambda: server.door.heads)
        server.door.writing[Faulty()] = None
        assert await all_that_comes(reader) == b""
        assert server.closed == {"silent": 1}
        assert "a sweep of the connections failed" in caplog.text
        writer.close()


# --- bodies -------------------------------------------------------------------------------------

LONG = request(b"Content-Length: 1000000", method=b"POST")
CHUNKED = request(b"Transfer-Encoding: chunked", method=b"POST")


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
            await asyncio.sleep(0)
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
            await asyncio.sleep(0)
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


# --- one answer to one request ------------------------------------------------------------------


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


# --- slow readers -------------------------------------------------------------------------------


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    async with guarded(large(16 << 20), write_s=SHORT_S) as server:
        reader, writer = await server.connect()
        writer.write(request())
        await until(lambda: server.closed == {"write_timeout": 1})
        await until(lambda: not server.door.open)
        assert len(await all_that_comes(reader)) < 16 << 20
        writer.close()


async def test_a_client_that_takes_it_slowly_gets_it_all() -> None:
    async with guarded(large(8 << 20), write_s=SHORT_S) as server:
        reader, writer = await server.connect()
        writer.write(request(b"Connection: close"))
        got = 0
        async with asyncio.timeout(WITHIN_S):
            while piece := await reader.read(1 << 18):
                got += len(piece)
                await asyncio.sleep(0.05)
        assert got > 8 << 20
        assert server.closed == {}
        writer.close()


async def test_small_answers_that_nobody_takes_end_with_the_idle_time() -> None:
    """They stay below the mark at which uvicorn stops writing."""
    transports: list[asyncio.Transport] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await answer(send, bytes(48 << 10))
        [transport] = [visitor.transport for visitor in server.server.server_state.connections]
        transports.append(transport)

    async with guarded(app, keepalive_s=SHORT_S, write_s=SHORT_S) as server:
        _, writer = await server.connect()
        transport = writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()
        for n in range(1000):  # more than the sockets' buffers hold
            writer.write(request())
            await until(lambda: len(transports) > n)  # noqa: B023 - waited for at once
            if transports[-1].get_write_buffer_size():
                break
        assert not server.door.writing
        await until(lambda: server.closed == {"write_timeout": 1})
        writer.close()


# --- how many -----------------------------------------------------------------------------------


async def test_the_surplus_of_connections_is_closed_at_accept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with guarded(prompt, connections=3) as server:
        kept = [await server.connect() for _ in range(3)]
        for reader, writer in kept:
            writer.write(request())
            assert statuses(await one_answer(reader)) == [200]
        with caplog.at_level(logging.WARNING):
            for _ in range(20):
                assert await told(server, b"") == b""
            assert server.closed == {"connections": 20}
            await until(lambda: "20 connections" in caplog.text)
        assert len(caplog.records) == 1
        kept[0][1].close()
        await until(lambda: server.door.open == 2)
        assert statuses(await told(server, request(b"Connection: close"))) == [200]
        for _, writer in kept[1:]:
            writer.close()
        await until(lambda: server.door.open == 0)


async def test_connections_of_one_address() -> None:
    async with guarded(prompt, connections_per_address=2) as server:

        async def from_address(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            local = (address, 0)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, local_addr=local
            )
            writer.write(request())
            return reader, writer

        kept = [await from_address("127.0.0.1") for _ in range(2)]
        for reader, _ in kept:
            assert statuses(await one_answer(reader)) == [200]
        refused, writer = await from_address("127.0.0.1")
        assert await all_that_comes(refused) == b""
        writer.close()
        assert server.closed == {"connections_per_address": 1}
        other, writer = await from_address("127.0.0.2")
        assert statuses(await one_answer(other)) == [200]
        for _, one in [*kept, (other, writer)]:
            one.close()
        await until(lambda: not server.door.by_address)


async def test_nothing_is_left_of_connections_that_ended() -> None:
    async with guarded(reading) as server:
        for sent in (b"", b"GET", request(), LONG, CHUNKED + b"5\r\nab", b"junk"):
            reader, writer = await server.connect()
            writer.write(sent)
            await asyncio.sleep(0.02)
            writer.close()
            await all_that_comes(reader)
        door = server.door
        await until(lambda: not door.open)
        for registry in (door.heads, door.idle, door.bodies, door.writing, door.lingering):
            assert not registry
