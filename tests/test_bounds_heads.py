"""The front door's bounds of a request's head, and of the time until it is there."""

import asyncio
import contextlib

import pytest

from asgi_gateway.asgi import Receive, Scope, Send
from asgi_gateway.refused import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from tests.support.bounded import SHORT_S, answer, prompt
from tests.support.guarded_app import guarded
from tests.support.raw_http import all_that_comes, one_answer, request, statuses, told
from tests.support.waiting import until


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
