"""The lean transport by itself, on real sockets: framing, reuse, addresses, and what is refused."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from asgi_gateway.configuration import load
from asgi_gateway.errors import Interrupted, StaleConnection, Unavailable
from asgi_gateway.upstream import connection as wire
from asgi_gateway.upstream.addresses import Addresses
from asgi_gateway.upstream.origin import Origin
from asgi_gateway.upstream.pool import Pool
from tests.support.certificate import self_signed
from tests.support.processes import deaf_port, free_port
from tests.support.told import Told
from tests.support.upstream import FakeUpstream, Raw, Request, answer, in_order
from tests.support.waiting import event, until

OK = answer(200, b'{"id":1}')
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
WHOLE = (200, b'{"id":1}', None)


@contextlib.asynccontextmanager
async def pool_of(*urls: str, **flags: Any) -> AsyncIterator[Pool]:
    dotted = {f"upstream.{name}": value for name, value in flags.items()}
    pool = Pool(load({"upstream.urls": list(urls), **dotted}, environ={}).settings.upstream)
    pool.open()
    try:
        yield pool
    finally:
        await pool.close()


def sent(pool: Pool, url: str, body: bytes = b"{}", **also: Any) -> Told:
    exchange = Told()
    fields = {"request_id": "r-1", "affinity": None, **also}
    pool.send(exchange, url, body, **fields)
    assert exchange.story == []
    return exchange


async def outcome_of(upstream: FakeUpstream, *data: bytes, then: str = "close") -> object:
    """What becomes of a request that is answered by these pieces."""

    async def script(request: Request) -> Raw:
        for piece in data[:-1]:
            await request.write(piece)
            await asyncio.sleep(0.01)
        return Raw(data[-1], then)

    upstream.script = script
    async with pool_of(upstream.url) as pool:
        return await sent(pool, upstream.url).outcome()


# --- framing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n", b'{"id":1}'),
        (b"HTTP/1.1 200 OK\r\ncontent-le", b"ngth: 8\r\n\r\n{", b'"id":1}'),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n" + WHOLE[1],),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b'8\r\n{"id":1}\r\n0\r\n\r\n'),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 8\r\n\r\n" + WHOLE[1],),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", b'{"id":', b"1}"),
    ],
    ids=["in two", "within a header", "interim", "chunked", "http 1.0", "until the end"],
)
async def test_a_whole_answer(upstream: FakeUpstream, data: tuple[bytes, ...]) -> None:
    assert await outcome_of(upstream, *data) == WHOLE


@pytest.mark.parametrize(
    "data",
    [
        (b"",),
        (b"HTTP/1.1 200 OK\r\ncontent-len",),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n", b'{"id"'),
        (b"HTTP/1.1 200 OK\r\ncontent-", b'length: 8\r\n\r\n{"id"'),
        (b"HTTP/1.1 200 OK\r\nserver: x\r\n", b'content-length: 8\r\n\r\n{"id"', b'":'),
        (EARLY + b'HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{"id"',),
        (EARLY, EARLY + b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{" + b'"i\r\n'),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b'8\r\n{"id":1}\r\n'),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\ntransfer-encoding: chunked\r\n\r\n" + WHOLE[1],),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\ncontent-length: 9\r\n\r\n" + WHOLE[1],),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",),
        (b"SSH-2.0-OpenSSH_9.2\r\n",),
        (b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * (wire.HEAD_CAP_BYTES // 4), b"x"),
    ],
    ids=[
        "nothing",
        "half a head",
        "half a body",
        "half a body after half a head",
        "half a body in pieces after half a head",
        "half a body after an interim answer",
        "half a body after two of them",
        "chunks without an end",
        "two framings",
        "two lengths",
        "upgrade",
        "not http",
        "endless head",
    ],
)
async def test_no_answer(upstream: FakeUpstream, data: tuple[bytes, ...]) -> None:
    assert isinstance(await outcome_of(upstream, *data), Interrupted)


@pytest.mark.parametrize(
    "data",
    [
        (b"HTTP/1.1 503 busy\r\nretry-", b"after: 7\r\ncontent-length: 4\r\n\r\nbusy"),
        (b"HTTP/1.1 503 busy\r\nretry-", b"after: 7\r\ncontent-length: 4\r\n\r\nb", b"usy"),
        (EARLY + b"HTTP/1.1 503 busy\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nb", b"usy"),
    ],
    ids=["in two", "in three", "interim"],
)
async def test_retry_after_in_pieces(upstream: FakeUpstream, data: tuple[bytes, ...]) -> None:
    assert await outcome_of(upstream, *data) == (503, b"busy", "7")


async def test_an_answer_whose_head_comes_in_pieces_has_begun(upstream: FakeUpstream) -> None:
    """The prompt is dropped then, and the sample is not sent again."""
    more = asyncio.Event()

    async def script(request: Request) -> Raw:
        await request.write(b"HTTP/1.1 200 OK\r\ncontent-")
        await asyncio.sleep(0.02)
        await request.write(b"length: 8\r\n\r\n{")
        await more.wait()
        return Raw(b'"id":1}', "keep")

    upstream.script = script
    async with pool_of(upstream.url) as pool:
        exchange = sent(pool, upstream.url)
        await until(lambda: exchange.story == ["answering"])
        more.set()
        assert await exchange.outcome() == WHOLE


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({"Retry-After": "7"}, "7"), ({"retry-after": " 7 "}, "7"), ({}, None)],
)
async def test_retry_after(
    upstream: FakeUpstream, headers: dict[str, str], expected: str | None
) -> None:
    upstream.script = in_order(answer(503, b"busy", headers=headers))
    async with pool_of(upstream.url) as pool:
        assert await sent(pool, upstream.url).outcome() == (503, b"busy", expected)


async def test_a_2xx_answer_is_announced_when_it_begins(upstream: FakeUpstream) -> None:
    begun = asyncio.Event()

    async def script(request: Request) -> Raw:
        await request.write(OK.data[:-4])
        await begun.wait()
        return Raw(OK.data[-4:], "keep")

    upstream.script = script
    async with pool_of(upstream.url) as pool:
        exchange = sent(pool, upstream.url)
        await until(lambda: exchange.story)
        assert exchange.story == ["answering"]
        begun.set()
        assert await exchange.outcome() == WHOLE
        assert exchange.story == ["answering", WHOLE]


# --- reuse ----------------------------------------------------------------------------------------


async def test_bytes_after_an_answer_reach_no_other_request(upstream: FakeUpstream) -> None:
    """A second answer to one request, in the same packet or later, must not be taken for the
    answer to the next."""
    forged = answer(200, b'{"id":"forged"}').data
    upstream.script = in_order(Raw(OK.data + forged, "keep"), OK)
    async with pool_of(upstream.url) as pool:
        assert await sent(pool, upstream.url).outcome() == WHOLE
        await event(upstream.requests[0].hung_up)
        assert await sent(pool, upstream.url).outcome() == WHOLE
        assert [request.nth for request in upstream.requests] == [1, 1]


async def test_bytes_on_an_idle_connection_end_it(upstream: FakeUpstream) -> None:
    upstream.script = in_order(OK)
    async with pool_of(upstream.url) as pool:
        assert await sent(pool, upstream.url).outcome() == WHOLE
        await upstream.requests[0].write(answer(200, b'{"id":"forged"}').data)
        await event(upstream.requests[0].hung_up)
        assert await sent(pool, upstream.url).outcome() == WHOLE
        assert [request.nth for request in upstream.requests] == [1, 1]


async def test_connection_close_is_respected(upstream: FakeUpstream) -> None:
    upstream.script = in_order(answer(200, b'{"id":1}', headers={"connection": "close"}))
    async with pool_of(upstream.url) as pool:
        for _ in range(2):
            assert await sent(pool, upstream.url).outcome() == WHOLE
    assert [request.nth for request in upstream.requests] == [1, 1]


async def test_a_connection_closed_while_idle_is_stale_and_a_fresh_one_is_not(
    upstream: FakeUpstream,
) -> None:
    upstream.script = in_order(OK, Raw(b"", "close"))
    async with pool_of(upstream.url) as pool:
        await sent(pool, upstream.url).outcome()
        assert isinstance(await sent(pool, upstream.url).outcome(), StaleConnection)
        assert isinstance(await sent(pool, upstream.url, fresh=True).outcome(), Interrupted)


async def test_a_late_loop_still_knows_a_stale_connection(upstream: FakeUpstream) -> None:
    """The close came at once and was seen late: no other sample may be lost for that."""

    async def script(request: Request) -> Raw:
        if request.nth == 1:
            return OK
        asyncio.get_running_loop().call_soon(time.sleep, 1.2)
        return Raw(b"", "close")

    upstream.script = script
    async with pool_of(upstream.url) as pool:
        await sent(pool, upstream.url).outcome()
        began = time.monotonic()
        assert isinstance(await sent(pool, upstream.url).outcome(), StaleConnection)
        assert time.monotonic() - began > 1.1


async def test_idle_connections_do_not_outlive_the_keepalive(upstream: FakeUpstream) -> None:
    upstream.script = in_order(OK)
    async with pool_of(upstream.url, keepalive_s=0.1) as pool:
        await sent(pool, upstream.url).outcome()
        assert repr(pool) == "<Pool 0 busy, 1 idle, 0 connecting>"
        await event(upstream.requests[0].hung_up)
        assert repr(pool) == "<Pool 0 busy, 0 idle, 0 connecting>"


async def test_an_idle_connection_makes_room_for_one_to_another_upstream(
    upstream: FakeUpstream,
) -> None:
    async with FakeUpstream().running() as other:
        upstream.script = other.script = in_order(OK)
        async with pool_of(upstream.url, other.url, max_connections=1) as pool:
            await sent(pool, upstream.url).outcome()
            await sent(pool, other.url).outcome()
            await event(upstream.requests[0].hung_up)
            assert repr(pool) == "<Pool 0 busy, 1 idle, 0 connecting>"


# --- abort and silence ----------------------------------------------------------------------------


async def test_an_abort_closes_the_connection_and_tells_nobody(upstream: FakeUpstream) -> None:
    async def script(request: Request) -> Raw:
        await request.hung_up.wait()
        return Raw()

    upstream.script = script
    async with pool_of(upstream.url) as pool:
        exchange = sent(pool, upstream.url)
        await until(lambda: upstream.requests)
        pool.abort(exchange)
        await event(upstream.requests[0].hung_up)
        assert exchange.story == []
        assert repr(pool) == "<Pool 0 busy, 0 idle, 0 connecting>"


async def test_connects_that_nobody_wants_any_more_end_at_once() -> None:
    """An upstream that takes no connection must not gather those of samples long gone."""
    port = free_port()
    with deaf_port(port):
        url = f"http://127.0.0.1:{port}"
        async with pool_of(url, connect_timeout_s=30) as pool:
            for _ in range(50):
                exchange = sent(pool, url)
                await asyncio.sleep(0)
                pool.abort(exchange)
                assert exchange.story == []
            await until(lambda: repr(pool) == "<Pool 0 busy, 0 idle, 0 connecting>")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_connect_that_was_given_up_leaves_the_others_alone(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """No descriptor of it may reach another connection, whenever it was given up."""

    async def named(request: Request) -> Raw:
        return answer(200, request.request_id.encode())

    async def scenario() -> None:
        async with FakeUpstream().running() as upstream, pool_of(upstream.url) as pool:
            upstream.script = named
            for number in range(60):
                given_up = sent(pool, upstream.url, request_id="gone", fresh=True)
                kept = sent(pool, upstream.url, request_id=f"kept-{number}", fresh=True)
                for _ in range(number % 6):
                    await asyncio.sleep(0)
                pool.abort(given_up)
                assert await kept.outcome() == (200, f"kept-{number}".encode(), None)
                assert given_up.story == []

    run(scenario())


async def test_an_upstream_that_drips_is_not_silent_and_one_that_stops_is(
    upstream: FakeUpstream,
) -> None:
    async def script(request: Request) -> Raw:
        await request.write(OK.data[:-6])
        for byte in OK.data[-6:-2]:
            await asyncio.sleep(0.1)
            await request.write(bytes([byte]))
        if len(upstream.requests) == 2:
            await request.hung_up.wait()
        return Raw(OK.data[-2:], "keep")

    upstream.script = script
    async with pool_of(upstream.url, read_timeout_s=0.25) as pool:
        assert await sent(pool, upstream.url).outcome() == WHOLE
        silent = await sent(pool, upstream.url).outcome()
        assert isinstance(silent, Interrupted)
        assert "0.25 s" in str(silent)


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_addresses(host: str) -> None:
    listen = "::1" if host == "[::1]" else "127.0.0.1"
    seen = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"{}"))
        writer.write(OK.data)
        writer.close()

    try:
        server = await asyncio.start_server(serve, listen, 0)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://user:pa%20ss@{host}:{port}/base/"
        async with pool_of(url) as pool:
            assert await sent(pool, url, affinity="s:1").outcome() == WHOLE
    assert seen == [
        f"POST /base/v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        "Content-Type: application/json\r\nAccept: application/json\r\n"
        "Authorization: Basic dXNlcjpwYSBzcw==\r\nX-Request-Id: r-1\r\nX-Session-ID: s:1\r\n"
        "Content-Length: 2\r\n\r\n{}".encode()
    ]


async def test_names_and_ports_that_nobody_answers() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    nowhere = "http://no.such.host.invalid:1"
    async with pool_of(nobody, nowhere) as pool:
        for url in (nobody, nowhere):
            error = await sent(pool, url).outcome(20)
            assert isinstance(error, Unavailable)
            assert url.removeprefix("http://") in str(error)


async def test_a_url_without_a_host_is_an_upstream_that_is_away() -> None:
    async with pool_of("") as pool:
        error = await sent(pool, "").outcome()
        assert isinstance(error, Unavailable)
        assert "names no host" in str(error)


async def test_every_address_of_a_name_is_tried_and_they_take_turns(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        return [(2, 1, 6, "", (address, port)) for address in ("127.0.0.9", "127.0.0.1")]

    upstream.script = in_order(OK)
    port = upstream.url.rsplit(":", 1)[1]
    url = f"http://some.name:{port}"
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    async with pool_of(url) as pool:
        for _ in range(3):
            assert await sent(pool, url, fresh=True).outcome() == WHOLE
        assert asked == ["some.name"]
        pool.forget_addresses()
        assert await sent(pool, url, fresh=True).outcome() == WHOLE
        assert asked == ["some.name"] * 2
    addresses = Addresses()
    first, second = [await addresses.resolved("some.name", 1) for _ in range(2)]
    assert first == second[::-1]


async def test_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path, "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"{}")
            writer.write(OK.data)
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        async with pool_of(url) as pool:
            refused = await sent(pool, url).outcome()
            assert isinstance(refused, Unavailable)
            assert "CERTIFICATE_VERIFY_FAILED" in str(refused)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with pool_of(url) as pool:
            assert await sent(pool, url).outcome() == WHOLE


def test_ids_that_no_header_may_hold_are_refused() -> None:
    origin = Origin("http://h:1")
    with pytest.raises(ValueError, match="control characters"):
        origin.head("r", "s\r\nX-Evil: 1", 2)
    with pytest.raises(ValueError, match="ascii"):
        origin.head("r", "sé", 2)
