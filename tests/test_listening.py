"""The listener of `serve`: many clients that come together get in together, also in a busy loop."""

import asyncio
import contextlib
import errno
import socket
import time

import pytest
import uvloop

from asgi_gateway.listeners import Factory, Listeners
from asgi_gateway.serve import Server
from asgi_gateway.settings import Settings
from asgi_gateway.standalone import Standalone

CLIENTS = 64
TURN_S = 0.001


def test_a_busy_loop_accepts_many_clients_in_a_turn() -> None:
    assert uvloop.run(_turns_until_all_are_in()) <= CLIENTS // 4


async def _turns_until_all_are_in() -> int:
    accepted = turns = 0

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal accepted
            accepted += 1
            transport.close()

    with contextlib.ExitStack() as stack:
        listeners = Listeners(socket.create_server(("127.0.0.1", 0), backlog=CLIENTS), CLIENTS)
        stack.callback(listeners.close)
        await listeners.accept(Server)
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.socket())
            client.connect(("127.0.0.1", listeners.port))
        while accepted < CLIENTS:
            await asyncio.sleep(0)
            time.sleep(TURN_S)  # noqa: ASYNC251 - the turn is what is long
            turns += 1
    return turns


async def test_accepting_again_is_tried_until_there_is_a_descriptor(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends nothing where there is none."""
    listeners = Listeners(socket.create_server(("127.0.0.1", 0)), 16)
    gateway = Standalone(Settings(), signals=False)
    server = Server(gateway, listeners, 4096, Settings)
    accept, fails = listeners.accept, [OSError(errno.EMFILE, "Too many open files")] * 3

    async def accept_later(factory: Factory) -> None:
        if fails:
            raise fails.pop()
        await accept(factory)

    monkeypatch.setattr(listeners, "accept", accept_later)
    for _ in range(3):
        assert not await server.on_tick(1)
        assert not listeners.accepting
    assert not await server.on_tick(1)
    assert listeners.accepting
    assert [record.message[:13] for record in caplog.records] == ["cannot accept"]
    listeners.close()
