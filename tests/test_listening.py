"""The listener of `serve`: many clients that come together get in together, also in a busy loop."""

import asyncio
import contextlib
import socket
import time

import uvloop

from asgi_gateway.listeners import Listeners

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
        listeners = Listeners("127.0.0.1", 0, CLIENTS)
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
