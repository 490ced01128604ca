"""Answers leave in one write, in order, and nothing that was written is lost or held for long."""

import asyncio
import socket
import threading
from collections.abc import Iterable

import pytest

from asgi_gateway.asgi import Receive, Scope, Send
from asgi_gateway.onewrite import LARGE_BYTES, MAX_PIECES, OneWrite
from tests.support.asgi_client import turns
from tests.support.guarded_app import guarded
from tests.support.processes import serve


class Wire(asyncio.Transport):
    """A transport that keeps what each call wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        assert not self.closed
        self.writes.append(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.writes.append(b"(paused)")

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 7


def wrapped() -> tuple[Wire, OneWrite]:
    wire = Wire()
    return wire, OneWrite(wire, asyncio.get_running_loop())


async def test_what_one_turn_writes_goes_out_at_once_and_in_order() -> None:
    wire, transport = wrapped()
    for piece in (b"head ", b"", b"body"):
        transport.write(piece)
    assert wire.writes == []
    await turns()
    assert wire.writes == [b"head body"]
    transport.write(b"next")
    await turns()
    assert wire.writes == [b"head body", b"next"]


async def test_much_is_not_held_until_the_end_of_the_turn() -> None:
    wire, transport = wrapped()
    transport.write(b"head ")
    transport.write(bytes(LARGE_BYTES + 1))
    assert [len(write) for write in wire.writes] == [5 + LARGE_BYTES + 1]
    transport.write(b"more")
    await turns()
    assert wire.writes[1:] == [b"more"]


async def test_many_pieces_are_not_held_until_the_end_of_the_turn() -> None:
    wire, transport = wrapped()
    for _ in range(1000):
        transport.write(b"x")
    assert len(wire.writes) == 1000 // (MAX_PIECES + 1)
    await turns()
    assert b"".join(wire.writes) == b"x" * 1000


async def test_closing_writes_what_is_held_first() -> None:
    wire, transport = wrapped()
    transport.write(b"the last")
    transport.close()
    assert wire.writes == [b"the last"]
    assert wire.closed
    await turns()
    assert wire.writes == [b"the last"]


async def test_a_connection_that_broke_meanwhile_is_written_to_no_more() -> None:
    wire, transport = wrapped()
    transport.write(b"too late")
    wire.closed = True
    await turns()
    assert wire.writes == []


async def test_all_else_is_the_transports_own() -> None:
    wire, transport = wrapped()
    transport.pause_reading()
    assert wire.writes == [b"(paused)"]
    assert transport.get_write_buffer_size() == 7
    assert not transport.is_closing()


# --- under uvicorn ------------------------------------------------------------------------------


async def test_a_head_does_not_wait_for_its_body() -> None:
    """Of an inner application that streams."""
    told = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.to_thread(told.wait)
        await send({"type": "http.response.body", "body": b"late", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with guarded(app) as server:
        reader, writer = await server.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        told.set()
        assert await asyncio.wait_for(reader.read(), 5) == b"4\r\nlate\r\n0\r\n\r\n"
        writer.close()


async def test_a_body_larger_than_the_sockets_buffers_comes_whole() -> None:
    large = bytes(range(256)) * (32 << 10)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % (2 * len(large)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": large, "more_body": True})
        await send({"type": "http.response.body", "body": large})

    async with guarded(app) as server:
        reader, writer = await server.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await asyncio.sleep(0.2)  # the server meets full buffers
        answer = await asyncio.wait_for(reader.read(), 20)
        assert answer.partition(b"\r\n\r\n")[2] == 2 * large
        writer.close()


@pytest.mark.parametrize("path", [b"/livez", b"/api/v1/healthz"])
def test_an_answer_of_serve_comes_in_one_piece(path: bytes) -> None:
    with (
        serve("http://127.0.0.1:9") as gateway,
        socket.create_connection(("127.0.0.1", gateway.port)) as wire,
    ):
        for _ in range(50):
            wire.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: x\r\n\r\n")
            head, _, body = wire.recv(1 << 16).partition(b"\r\n\r\n")
            assert b"content-length: %d" % len(body) in head
            assert body
