"""The proxy on real sockets, under uvicorn in a process of its own: what arrives is what was sent.

What goes wrong on the way is in `test_proxy_faults.py`.
"""

import asyncio
import gzip
import hashlib
import os

import pytest

from tests.support.waiting import until
from tests.training.caller import ask, call
from tests.training.conftest import Front
from tests.training.target import Request, Target

MIB = 1 << 20


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_the_request_line_arrives_as_it_was_sent(
    uvicorn_front: Front, target: Target, method: str
) -> None:
    sent = "/api/v1/runs/a%2Fb%2fc//d/../%7Ee:train:0/x;y=1/[z]?q=%2F&q=a+b&r=%C3%A9&empty="
    heard = (await ask(uvicorn_front.port, method, sent)).heard()
    assert (heard.method, heard.target) == (method, sent)


async def test_headers_arrive_as_sent_and_nothing_is_added(
    uvicorn_front: Front, target: Target
) -> None:
    heard = (
        await ask(
            uvicorn_front.port,
            "POST",
            "/x",
            "X-API-Key: tml-secret",
            "cookie: a=1",
            "x-twice: one",
            "x-twice: two",
            "x-utf8: caf\u00c3\u00a9",
            "content-encoding: zstd",
            body=b"\x28\xb5\x2f\xfd not really",
        )
    ).heard()
    assert sorted(heard.headers) == sorted(
        [
            ("Host", f"127.0.0.1:{uvicorn_front.trainer_port}"),
            ("x-api-key", "tml-secret"),
            ("cookie", "a=1"),
            ("x-twice", "one"),
            ("x-twice", "two"),
            ("x-utf8", "caf\u00c3\u00a9"),
            ("content-encoding", "zstd"),
            ("Content-Length", "15"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "front.example"),
        ]
    )
    assert heard.sha256 == hashlib.sha256(b"\x28\xb5\x2f\xfd not really").hexdigest()


async def test_hop_by_hop_headers_end_here(uvicorn_front: Front, target: Target) -> None:
    async def script(request: Request) -> None:
        assert (await request.heard()).length == 0
        names = {name.lower() for name, _ in request.headers}
        assert not names & {"connection", "te", "trailer", "x-mine", "keep-alive", "expect"}
        await request.answer(
            200, b"", "Connection: x-yours", "X-Yours: 1", "Keep-Alive: timeout=5", "X-Kept: 1"
        )

    target.script = script
    sent = ["te: trailers", "trailer: x-sum", "keep-alive: 1", "connection: x-mine", "x-mine: 1"]
    answer = await ask(uvicorn_front.port, "GET", "/", *sent)
    names = {name for name, _ in answer.headers}
    assert answer.status == 200
    assert "x-kept" in names
    assert not names & {"x-yours", "keep-alive"}


async def test_forwarded_headers_are_appended_to(uvicorn_front: Front, target: Target) -> None:
    claimed = ["x-forwarded-for: 203.0.113.9", "x-forwarded-host: claimed.example"]
    heard = (await ask(uvicorn_front.port, "GET", "/", *claimed)).heard()
    # uvicorn trusts a local peer's X-Forwarded-For, so it names that address as its client.
    assert heard.all("x-forwarded-for") == ["203.0.113.9, 203.0.113.9"]
    assert heard.all("x-forwarded-host") == ["claimed.example, front.example"]


@pytest.mark.parametrize("status", [200, 201, 202, 400, 404, 408, 410, 425, 429, 500, 503])
async def test_answers_come_back_as_given(
    uvicorn_front: Front, target: Target, status: int
) -> None:
    body = gzip.compress(b'{"detail": "as it is"}' * 50)

    async def script(request: Request) -> None:
        await request.answer(
            status,
            body,
            "Content-Encoding: gzip",
            "Set-Cookie: a=1; Path=/",
            "Set-Cookie: b=2",
            "X-Should-Retry: false",
            "Content-Type: application/json",
        )

    target.script = script
    answer = await ask(uvicorn_front.port, "POST", "/", body=b"{}")
    assert (answer.status, answer.body, answer.whole) == (status, body, True)
    assert answer.all("set-cookie") == ["a=1; Path=/", "b=2"]
    assert answer.all("content-encoding") == ["gzip"]
    assert answer.all("content-length") == [str(len(body))]
    assert answer.all("x-should-retry") == ["false"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_passed_on_not_followed(
    uvicorn_front: Front, target: Target, status: int
) -> None:
    where = "https://bucket.example/a%2Fb?sig=%2B&x=1"

    async def script(request: Request) -> None:
        await request.answer(status, b"", f"Location: {where}", "Expires: tomorrow")

    target.script = script
    answer = await ask(uvicorn_front.port, "GET", "/archive")
    assert (answer.status, answer.all("location")) == (status, [where])
    assert len(target.requests) == 1


@pytest.mark.parametrize(
    ("method", "status", "length"), [("HEAD", 200, ["1234"]), ("GET", 204, []), ("GET", 304, [])]
)
async def test_answers_without_a_body(
    uvicorn_front: Front, target: Target, method: str, status: int, length: list[str]
) -> None:
    async def script(request: Request) -> None:
        stated = b"" if status == 204 else b"Content-Length: 1234\r\n"
        await request.write(b"HTTP/1.1 %d X\r\nETag: x\r\n" % status + stated + b"\r\n")

    target.script = script
    for _ in range(2):
        answer = await ask(uvicorn_front.port, method, "/")
        assert (answer.status, answer.body, answer.all("etag")) == (status, b"", ["x"])
        assert answer.all("content-length") == length
    assert target.connections == 1, "the connection to the trainer was not kept"


async def test_a_chunked_body_without_a_length(uvicorn_front: Front, target: Target) -> None:
    pieces = [os.urandom(10_000) for _ in range(30)]
    async with call(uvicorn_front.port) as one:
        await one.send("POST", "/", "transfer-encoding: chunked")
        await one.stream(pieces)
        heard = (await one.answer()).heard()
    assert heard.length == 300_000
    assert heard.sha256 == hashlib.sha256(b"".join(pieces)).hexdigest()
    assert target.requests[0].chunked


async def test_an_expected_continue_is_answered_here(uvicorn_front: Front, target: Target) -> None:
    async with call(uvicorn_front.port) as one:
        await one.send("POST", "/", "expect: 100-continue", "content-length: 5")
        assert (await one.head())[0] == 100
        one.writer.write(b"hello")
        heard = (await one.answer()).heard()
    assert (heard.length, heard.all("expect")) == (5, [])


async def test_a_request_body_is_passed_on_as_it_comes(
    uvicorn_front: Front, target: Target
) -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(request: Request) -> None:
        async for piece in request.pieces():
            arrived.put_nowait(piece)
        await request.answer(200)

    target.script = script
    async with call(uvicorn_front.port) as one:
        await one.send("POST", "/", "content-length: 6")
        for piece in (b"one", b"two"):
            one.writer.write(piece)
            assert await asyncio.wait_for(arrived.get(), 5) == piece
        assert (await one.answer()).status == 200


async def test_an_answer_is_passed_on_as_it_comes(uvicorn_front: Front, target: Target) -> None:
    seen = asyncio.Event()

    async def script(request: Request) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b"one", b"two"):
            await request.write(b"3\r\n%b\r\n" % piece)
            await asyncio.wait_for(seen.wait(), 5)
            seen.clear()
        await request.write(b"0\r\n\r\n")

    target.script = script
    async with call(uvicorn_front.port) as one:
        await one.send("GET", "/")
        assert (await one.head())[0] == 200
        for expected in (b"one", b"two"):
            assert await one.chunk() == expected
            seen.set()
        assert await one.chunk() == b""


async def test_20_mb_up_wait_for_the_trainer(uvicorn_front: Front, target: Target) -> None:
    reading = asyncio.Event()

    async def script(request: Request) -> None:
        await reading.wait()
        await request.answer(200, (await request.heard()).sha256.encode())

    target.script = script
    body = os.urandom(20 * MIB)
    before = uvicorn_front.resident_bytes()
    async with call(uvicorn_front.port) as one:
        sending = asyncio.create_task(
            one.send("POST", "/", f"content-length: {len(body)}", body=body)
        )
        await until(lambda: target.requests)
        done, _ = await asyncio.wait([sending], timeout=0.5)
        assert not done, "somebody took 20 MB that the trainer had not"
        grown = uvicorn_front.resident_bytes() - before
        reading.set()
        await sending
        answer = await one.answer()
    assert answer.body == hashlib.sha256(body).hexdigest().encode()
    assert grown < 4 * MIB
    assert uvicorn_front.resident_bytes() - before < 4 * MIB


@pytest.mark.parametrize("chunked", [True, False])
async def test_20_mb_down_wait_for_the_client(
    uvicorn_front: Front, target: Target, *, chunked: bool
) -> None:
    body = os.urandom(20 * MIB)
    written = asyncio.Event()

    async def script(request: Request) -> None:
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
        await request.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n")
        for start in range(0, len(body), MIB // 4):
            piece = body[start : start + MIB // 4]
            await request.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        await request.write(b"0\r\n\r\n" if chunked else b"")
        written.set()

    target.script = script
    before = uvicorn_front.resident_bytes()
    async with call(uvicorn_front.port) as one:
        await one.send("GET", "/")
        await until(lambda: target.requests)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(written.wait(), 0.5)
        grown = uvicorn_front.resident_bytes() - before
        answer = await one.answer()
    assert answer.whole
    assert answer.body == body
    assert grown < 4 * MIB
    assert uvicorn_front.resident_bytes() - before < 4 * MIB


async def test_any_number_of_polls_are_held_at_once(uvicorn_front: Front, target: Target) -> None:
    everybody = asyncio.Event()

    async def script(request: Request) -> None:
        if len(target.requests) == 300:
            everybody.set()
        await everybody.wait()
        await request.answer(408, b"{}")

    target.script = script
    polls = [ask(uvicorn_front.port, "POST", "/poll", body=b"{}") for _ in range(300)]
    assert {answer.status for answer in await asyncio.gather(*polls)} == {408}
    assert target.connections == 300
