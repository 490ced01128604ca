"""The listener of `serve`: many clients that come together get in together, also in a busy loop."""

import asyncio
import contextlib
import socket
import time

import uvloop

from asgi_gateway.__main__ import _listen

CLIENTS = 64
TURN_S = 0.001


def test_a_busy_loop_accepts_many_clients_in_a_turn() -> None:
    assert uvloop.run(_turns_until_all_are_in()) <= CLIENTS // 4


async def _turns_until_all_are_in() -> int:
    loop = asyncio.get_running_loop()
    accepted = turns = 0

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal accepted
            accepted += 1
            transport.close()

    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(s) for s in _listen("127.0.0.1", 0, CLIENTS)]
        servers = [await loop.create_server(Server, sock=listener) for listener in listeners]
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.socket())
            client.connect(listeners[0].getsockname())
        while accepted < CLIENTS:
            await asyncio.sleep(0)
            time.sleep(TURN_S)  # noqa: ASYNC251 - the turn is what is long
            turns += 1
        for server in servers:
            server.close()
            await server.wait_closed()
    return turns
