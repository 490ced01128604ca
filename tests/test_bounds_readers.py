"""The front door cuts off clients that do not take their answers."""

import asyncio

from asgi_gateway.asgi import App, Receive, Scope, Send
from tests.support.bounded import SHORT_S, answer
from tests.support.guarded_app import guarded
from tests.support.raw_http import WITHIN_S, all_that_comes, request
from tests.support.waiting import until


def large(nbytes: int) -> App:
    body = bytes(nbytes)

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await answer(send, body)

    return app


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
