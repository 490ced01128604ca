"""A connection that is given up takes back what the server did not get: a submit that arrived after
its gateway had let go of it would be nobody's."""

import asyncio
import socket

import pytest

from asgi_gateway.clock import SystemClock
from asgi_gateway.shared.address import Server
from asgi_gateway.shared.errors import Unanswered
from asgi_gateway.shared.wire import Wire

COMMAND = b"x" * (4 << 20)


@pytest.mark.parametrize("command", [COMMAND, b"small"])
async def test_what_was_not_delivered_never_is(command: bytes) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        host, port = listener.getsockname()
        _, wire = await loop.create_connection(
            lambda: Wire(Server(host, port), SystemClock(), loop), host, port
        )
        server, _ = listener.accept()
        with server:
            server.settimeout(5)
            reply = wire.ask(b"SET", b"key", command)
            await asyncio.sleep(0)
            wire.lose("it says nothing")
            with pytest.raises(Unanswered):
                await reply
            await asyncio.sleep(0.05)  # the loop closes it
            # An end without a reset would come after all that the kernel had.
            with pytest.raises(ConnectionResetError):
                _read_to_the_end(server)


def _read_to_the_end(server: socket.socket) -> None:
    while server.recv(1 << 16):
        pass
