"""Requests that come on a connection of `serve` before the one ahead of them is answered."""

import asyncio

from asgi_gateway.asgi import REPLY, Receive, Reply, Scope, Send, send_reply
from tests.support.guarded_app import guarded
from tests.support.raw_http import one_answer, request
from tests.support.waiting import until


async def echo(_: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    await send_reply(send, Reply(200, body))


async def test_all_requests_of_a_connection_that_is_lost_know_of_it() -> None:
    """Not only the last one that came: the first is the one that is being answered."""
    began: list[str] = []
    kinds: list[str] = []

    async def app(scope: Scope, receive: Receive, _: Send) -> None:
        began.append(scope["path"])
        async with asyncio.timeout(3):
            await receive()
            kinds.append(str((await receive())["type"]))
        assert receive.__self__.disconnected  # type: ignore[attr-defined]
        assert scope["extensions"][REPLY](Reply(200, b""))

    async with guarded(app) as server:
        _, writer = await server.connect()
        writer.write(b"".join(request(target=b"/%d" % n) for n in range(3)))
        await until(lambda: bool(began))
        writer.close()
        await until(lambda: not server.server.server_state.tasks)
    assert (began, kinds) == (["/0"], ["http.disconnect"])


async def test_the_end_of_one_body_is_no_framing_of_the_next() -> None:
    async with guarded(echo) as server:
        reader, writer = await server.connect()
        head = request(b"Content-Length: 50000", method=b"POST")
        writer.write(head + bytes(10_000))
        await until(lambda: len(server.door.bodies) == 1)
        await asyncio.sleep(0.05)
        writer.write(bytes(40_000) + request(b"Content-Length: 10", method=b"POST") + b"x")
        assert (await one_answer(reader)).endswith(b"\r\n\r\n" + bytes(50_000))
        writer.write(b"x" * 9)
        assert (await one_answer(reader)).endswith(b"\r\n\r\n" + b"x" * 10)
        await until(lambda: not server.door.bodies)
        writer.close()
    assert not server.closed
