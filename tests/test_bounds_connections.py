"""The front door's bounds of how many connections are open."""

import asyncio
import logging

import pytest

from tests.support.bounded import CHUNKED, LONG, prompt, reading
from tests.support.guarded_app import guarded
from tests.support.raw_http import all_that_comes, one_answer, request, statuses, told
from tests.support.waiting import until


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
