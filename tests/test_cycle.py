"""The cycle of `serve`: uvicorn's rules, whole answers in one call, and nothing left behind."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from asgi_gateway.asgi import REPLY, App, Receive, Reply, Scope, Send, send_reply
from asgi_gateway.cycle import _MAX_TARGET_BYTES, Arrival, Cycle
from asgi_gateway.onewrite import LARGE_BYTES
from tests.support.guarded_app import guarded
from tests.support.raw_http import one_answer, request, statuses, told
from tests.support.waiting import until

SECRET = b"the whole answer"


def replying(body: bytes = SECRET, **fields: Any) -> tuple[App, list[bool]]:
    """An application that hands its answer over whole, and what it was told of it."""
    told_it: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        reply = Reply(200, body, **fields)
        told_it.append(scope["extensions"][REPLY](reply))
        if not told_it[-1]:
            await send_reply(send, reply)

    return app, told_it


async def echo(_: Scope, receive: Receive, send: Send) -> None:
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    await send_reply(send, Reply(200, body))


# --- whole answers ------------------------------------------------------------------------------


async def test_a_whole_answer_is_what_send_would_have_written() -> None:
    app, told_it = replying(content_type=b"text/plain")

    async def by_send(_: Scope, __: Receive, send: Send) -> None:
        await send_reply(send, Reply(200, SECRET, b"text/plain"))

    answers = []
    for each in (app, by_send):
        async with guarded(each) as server:
            reader, writer = await server.connect()
            writer.write(request())
            answers.append((await one_answer(reader)).split(b"\r\n"))
            writer.close()
    assert told_it == [True]
    whole, sent = ([line for line in lines if not line.startswith(b"date: ")] for lines in answers)
    assert whole == sent
    assert sum(line.startswith(b"date: ") for line in answers[0]) == 1


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES, LARGE_BYTES + 1, 5_000_000])
async def test_a_whole_answer_of_any_size_arrives_and_the_connection_goes_on(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    app, _ = replying(body)
    async with guarded(app) as server:
        reader, writer = await server.connect()
        for _ in range(2):
            writer.write(request())
            assert (await one_answer(reader)).endswith(b"\r\n\r\n" + body)
        writer.close()


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (request(b"Connection: close"), {}),
        (b"GET / HTTP/1.0\r\n\r\n", {}),
        (request(b"Connection: close", method=b"HEAD"), {}),
        (request(b"Connection: close"), {"headers": ((b"x-more", b"yes"),)}),
    ],
    ids=["close", "1.0", "head", "headers"],
)
async def test_what_is_not_so_simple_is_left_to_send(sent: bytes, reply: dict[str, Any]) -> None:
    app, told_it = replying(**reply)
    async with guarded(app) as server:
        got = await told(server, sent)
    assert told_it == [False]
    assert statuses(got) == [200]
    assert got.endswith(b"" if b"HEAD" in sent else SECRET)
    assert b"\r\nconnection: close" in got
    assert (b"x-more: yes" in got) == bool(reply)


async def test_a_client_that_reads_nothing_is_answered_by_send_in_its_own_time() -> None:
    """Where the buffer is full `send` waits, and with it what makes the next answer."""
    app, told_it = replying(bytes(20_000_000))
    async with guarded(app) as server:
        reader, writer = await server.connect()
        writer.write(request() * 2)
        await until(lambda: len(told_it) == 2)
        assert told_it == [True, False]
        for _ in range(2):
            assert len(await one_answer(reader)) > 20_000_000
        writer.close()


async def test_the_date_is_of_the_answer_however_long_it_was_held() -> None:
    async def held(scope: Scope, _: Receive, __: Send) -> None:
        state = server.server.server_state
        before = dict(state.default_headers)
        await until(lambda: dict(state.default_headers) != before)
        assert scope["extensions"][REPLY](Reply(200, dict(state.default_headers)[b"date"]))

    async with guarded(held) as server:
        reader, writer = await server.connect()
        writer.write(request())
        head, _, date = (await one_answer(reader)).partition(b"\r\n\r\n")
        assert b"\r\ndate: " + date + b"\r\n" in head
        writer.close()


async def test_nothing_is_written_after_an_answer() -> None:
    failed: list[BaseException] = []

    async def twice(scope: Scope, _: Receive, send: Send) -> None:
        reply = scope["extensions"][REPLY]
        assert reply(Reply(200, SECRET))
        assert not reply(Reply(200, b"again"))
        try:
            await send_reply(send, Reply(200, b"again"))
        except RuntimeError as error:
            failed.append(error)

    async with guarded(twice) as server:
        reader, writer = await server.connect()
        writer.write(request() * 2)
        for _ in range(2):
            assert (await one_answer(reader)).endswith(SECRET)
        writer.close()
    assert len(failed) == 2


async def test_answers_to_requests_sent_in_advance_keep_their_order() -> None:
    async def slow_first(scope: Scope, _: Receive, __: Send) -> None:
        if scope["path"] == "/0":
            await asyncio.sleep(0.05)
        assert scope["extensions"][REPLY](Reply(200, scope["path"].encode()))

    async with guarded(slow_first) as server:
        reader, writer = await server.connect()
        writer.write(b"".join(request(target=b"/%d" % n) for n in range(5)))
        for n in range(5):
            assert (await one_answer(reader)).endswith(b"\r\n\r\n/%d" % n)
        writer.close()


async def test_an_answer_while_a_receive_waits_tells_it_that_the_request_is_over() -> None:
    kinds: list[str] = []

    async def app(scope: Scope, receive: Receive, _: Send) -> None:
        await receive()
        listening = [asyncio.create_task(_kind(receive)) for _ in range(2)]
        await asyncio.sleep(0)
        assert scope["extensions"][REPLY](Reply(200, SECRET))
        kinds.extend(await asyncio.gather(*listening))

    async with guarded(app) as server:
        reader, writer = await server.connect()
        writer.write(request())
        await one_answer(reader)
        await until(lambda: len(kinds) == 2)
        writer.close()
    assert kinds == ["http.disconnect"] * 2


async def _kind(receive: Receive) -> str:
    return str((await receive())["type"])


# --- bodies and targets -------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 7])
async def test_a_body_in_pieces_is_put_together(pieces: int) -> None:
    body = bytes(range(250)) * 7
    step = -(-len(body) // pieces)
    async with guarded(echo) as server:
        reader, writer = await server.connect()
        for _ in range(2):
            writer.write(request(b"Content-Length: %d" % len(body), method=b"POST"))
            for at in range(0, len(body), step):
                await writer.drain()
                await asyncio.sleep(0.01)
                writer.write(body[at : at + step])
            assert (await one_answer(reader)).endswith(b"\r\n\r\n" + body)
        writer.close()


async def test_chunks_in_one_read_are_put_together() -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in (b"ab", b"cde", b"f" * 300))
    async with guarded(echo) as server:
        head = request(b"Transfer-Encoding: chunked", b"Connection: close", method=b"POST")
        got = await told(server, head + chunks + b"0\r\n\r\n")
    assert got.endswith(b"abcde" + b"f" * 300)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a", "/a", b""),
        (b"/a?b=%20&c", "/a", b"b=%20&c"),
        (b"/a%20b%2Fc", "/a b/c", b""),
        (b"/%e4%bd%a0", "/\u4f60", b""),
        (b"/" + b"x" * _MAX_TARGET_BYTES, "/" + "x" * _MAX_TARGET_BYTES, b""),
    ],
)
async def test_a_target_is_the_same_however_often_it_comes(
    target: bytes, path: str, query: bytes
) -> None:
    seen: list[tuple[str, bytes, bytes]] = []

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        seen.append((scope["path"], scope["raw_path"], scope["query_string"]))
        await send_reply(send, Reply(200, b""))

    async with guarded(app) as server:
        await told(server, request(target=target) + request(b"Connection: close", target=target))
    assert seen == [(path, target.split(b"?")[0], query)] * 2


# --- the end of a request -----------------------------------------------------------------------


async def test_an_application_that_fails_or_answers_nothing_is_a_500(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def failing(scope: Scope, _: Receive, __: Send) -> None:
        if scope["path"] == "/raise":
            raise ValueError("of the application")

    async with guarded(failing) as server:
        for target in (b"/raise", b"/nothing"):
            got = await told(server, request(target=target))
            assert statuses(got) == [500]
            assert b"of the application" not in got
    said = capfd.readouterr().err
    assert "ValueError: of the application" in said
    assert "without the end of an answer" in said


async def test_the_server_knows_its_tasks_until_they_end_also_after_the_answer() -> None:
    """uvicorn waits for them when it stops."""
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()
    ended: list[bool] = []

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        scope["extensions"][REPLY](Reply(200, SECRET))
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go_on.wait(), loop))
        ended.append(True)

    async with guarded(app) as server:
        reader, writer = await server.connect()
        writer.write(request())
        await one_answer(reader)
        assert len(server.server.server_state.tasks) == 1
        go_on.set()
        await until(lambda: not server.server.server_state.tasks)
        assert ended == [True]
        writer.close()


async def test_a_request_that_is_over_is_freed_without_the_collector() -> None:
    cycles: list[weakref.ref[Cycle]] = []

    async def app(scope: Scope, receive: Receive, _: Send) -> None:
        cycles.append(weakref.ref(receive.__self__))  # type: ignore[attr-defined]
        assert scope["extensions"][REPLY](Reply(200, SECRET))

    gc.disable()
    try:
        async with guarded(app) as server:
            reader, writer = await server.connect()
            for _ in range(3):
                writer.write(request())
                await one_answer(reader)
            # The last one is its connection's until the next request.
            await until(lambda: [ref() is None for ref in cycles] == [True, True, False])
            writer.close()
            await writer.wait_closed()
    finally:
        gc.enable()


async def test_an_arrival_wakes_all_who_wait_and_forgets_those_who_gave_up() -> None:
    arrival = Arrival(asyncio.get_running_loop())
    waiting = [asyncio.create_task(arrival.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    arrival.set()
    await asyncio.wait_for(asyncio.gather(*waiting[1:]), 1)
    assert waiting[0].cancelled()
    await asyncio.wait_for(arrival.wait(), 1)
    arrival.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(arrival.wait(), 0.01)
