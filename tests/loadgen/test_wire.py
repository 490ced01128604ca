"""The client's HTTP, against a server that says exactly what a test wants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loadgen.address import Address
from loadgen.outcomes import Traffic
from loadgen.wire import ABANDONED, DROPPED, OVERDUE, Limit, Pool

Answer = tuple[int, bytes, bytes]
REQUEST = b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"


class Script:
    """Answers the n-th request with the n-th entry: pieces to write, None to close after them."""

    def __init__(self, answers: list[list[bytes | None]]) -> None:
        self._answers = iter(answers)
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                for piece in next(self._answers):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError, StopIteration):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def pool(
    answers: list[list[bytes | None]], *, within_s: float = 5.0, size: int = 1
) -> AsyncIterator[tuple[Pool, Script, Traffic]]:
    script, traffic = Script(answers), Traffic()
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made = Pool(Address("127.0.0.1", port, b""), traffic, within_s=within_s, size=size)
    try:
        yield made, script, traffic
    finally:
        made.close()
        server.close()


async def ask(made: Pool, limit: Limit | None = None) -> Answer:
    told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    made.ask(REQUEST, lambda *answer: told.set_result(answer), limit)
    return await asyncio.wait_for(told, 10.0)


def answer(body: bytes, head: bytes = b"", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: text/x\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        head,
        len(body),
        body,
    )


async def test_answers_in_one_piece_in_two_and_in_chunks() -> None:
    whole = answer(b"hello")
    chunked = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/x\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    )
    pieces: list[list[bytes | None]] = [
        [whole],
        [whole],
        [whole[:30], whole[30:]],
        [whole[:-2], whole[-2:]],
        [chunked],
        [whole],
    ]
    async with pool(pieces) as (made, script, traffic):
        for _ in pieces:
            assert await ask(made) == (200, b"text/x", b"hello")
        assert script.connections == traffic.connections == 1
        assert traffic.reconnects == 0


async def test_a_known_head_does_not_fix_the_body() -> None:
    async with pool([[answer(b"one")], [answer(b"two")], [answer(b"")]]) as (made, _, __):
        assert [(await ask(made))[2] for _ in range(3)] == [b"one", b"two", b""]


async def test_statuses_are_told() -> None:
    async with pool([[answer(b"{}", status=b"429 Too Many Requests")]]) as (made, _, __):
        assert (await ask(made))[0] == 429


async def test_a_connection_that_is_to_be_closed_is_not_used_again() -> None:
    closing = answer(b"x", b"connection: close\r\n")
    async with pool([[closing, None], [closing, None]]) as (made, script, traffic):
        assert await ask(made) == (200, b"text/x", b"x")
        assert await ask(made) == (200, b"text/x", b"x")
        assert (script.connections, traffic.reconnects) == (2, 1)


async def test_a_lost_connection_is_a_drop_and_the_next_request_has_a_new_one() -> None:
    half = answer(b"hello")[:-3]
    async with pool([[half, None], [None], [answer(b"x")]]) as (made, script, traffic):
        assert (await ask(made))[0] == DROPPED
        assert (await ask(made))[0] == DROPPED
        assert (await ask(made))[0] == 200
        assert (script.connections, traffic.reconnects) == (3, 2)


async def test_what_is_no_http_is_a_drop() -> None:
    async with pool([[b"hello\r\n\r\n"]]) as (made, _, __):
        assert (await ask(made))[0] == DROPPED


async def test_no_listener_is_a_drop() -> None:
    async with pool([]) as (made, _, __):
        made._where = Address("127.0.0.1", 1, b"")
        assert (await ask(made))[0] == DROPPED


async def test_limits() -> None:
    async with pool([[], [], [answer(b"x")]], within_s=0.3) as (made, _, __):
        assert (await ask(made))[0] == OVERDUE
        assert (await ask(made, (0.01, ABANDONED)))[0] == ABANDONED
        assert (await ask(made, (5.0, ABANDONED)))[0] == 200


async def test_requests_beyond_the_size_wait_their_turn() -> None:
    pieces: list[list[bytes | None]] = [[answer(b"%d" % n)] for n in range(9)]
    async with pool(pieces, size=1) as (made, script, _):
        found = await asyncio.gather(*(ask(made) for _ in range(9)))
        assert [int(body) for _, __, body in found] == list(range(9))
        assert script.connections == 1


async def test_connections_come_from_the_source_addresses_in_turn() -> None:
    peers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername")[0])
        if len(peers) == 6:
            all_here.set()
        await reader.readuntil(b"\r\n\r\n")
        await all_here.wait()
        writer.write(answer(b"x"))
        await writer.drain()
        writer.close()

    all_here = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    where = Address("127.0.0.1", server.sockets[0].getsockname()[1], b"")
    sources = ("127.0.1.1", "127.0.1.2")
    made = Pool(where, Traffic(), within_s=5.0, sources=sources)
    asked = [asyncio.create_task(ask(made)) for _ in range(6)]
    assert {status for status, _, __ in await asyncio.gather(*asked)} == {200}
    assert sorted(peers) == ["127.0.1.1"] * 3 + ["127.0.1.2"] * 3
    made.close()
    server.close()
