"""The calls that the gateway makes itself."""

import asyncio

import pytest

from asgi_gateway.errors import Interrupted, Unavailable, Unreadable
from asgi_gateway.training import proxy as proxy_module
from asgi_gateway.training.proxy import Proxy
from tests.support.processes import free_port
from tests.support.waiting import event, until
from tests.training.conftest import opened
from tests.training.target import Request, Target


async def test_body_headers_and_answer() -> None:
    async def script(request: Request) -> None:
        body = b"".join([piece async for piece in request.pieces()])
        assert body == b'{"tags":["a"]}'
        assert request.header("content-type") == "application/json"
        assert request.header("x-api-key") == "tml-x"
        assert request.header("user-agent") is None
        await request.answer(201, b'{"session_id":"s"}', "X-Note: 1", "Set-Cookie: a=1")

    async with Target().running() as target, opened(target.url + "/base/") as proxy:
        target.script = script
        answer = await proxy.request_json(
            "POST", "/api/v1/create_session", {"tags": ["a"]}, {"x-api-key": "tml-x"}
        )
        assert (answer.status, answer.body) == (201, b'{"session_id":"s"}')
        assert answer.headers["x-note"] == "1"
        assert target.requests[0].target == "/base/api/v1/create_session"


async def test_no_body_and_no_redirect() -> None:
    async def script(request: Request) -> None:
        assert (request.header("content-length"), request.header("content-type")) == (None, None)
        await request.answer(302, b"", "Location: /elsewhere")

    async with Target().running() as target, opened(target.url) as proxy:
        target.script = script
        assert (await proxy.request_json("GET", "/api/v1/samplers/a%2Fb")).status == 302
        assert [request.target for request in target.requests] == ["/api/v1/samplers/a%2Fb"]


async def test_what_may_be_sent_again_is_told_from_what_may_not() -> None:
    async def script(request: Request) -> None:
        await request.heard()
        request.hang_up()

    with pytest.raises(Unavailable, match="not open"):
        await Proxy("http://127.0.0.1:1").request_json("GET", "/")
    async with opened(f"http://127.0.0.1:{free_port()}") as proxy:
        with pytest.raises(Unavailable, match="cannot connect"):
            await proxy.request_json("POST", "/", {})
    async with Target().running() as target, opened(target.url) as proxy:
        target.script = script
        with pytest.raises(Interrupted, match="ServerDisconnected"):
            await proxy.request_json("POST", "/", {})
        target.script = Request.wait_for_hang_up
        with pytest.raises(Interrupted, match="Timeout"):
            await proxy.request_json("POST", "/", {}, timeout_s=0.05)


async def test_an_answer_that_drips_is_waited_for_no_longer_than_a_silent_one() -> None:
    async def script(request: Request) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n")
        while not request.hung_up.is_set():
            await request.write(b" ")
            await asyncio.sleep(0.02)

    async with Target().running() as target, opened(target.url) as proxy:
        target.script = script
        async with asyncio.timeout(20):
            with pytest.raises(Interrupted, match="Timeout"):
                await proxy.request_json("GET", "/", timeout_s=0.3)


async def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "ASK_CAP_BYTES", 1000)

    async def script(request: Request) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 1001)
        await request.wait_for_hang_up()

    async with Target().running() as target, opened(target.url) as proxy:
        target.script = script
        with pytest.raises(Unreadable, match="more than 1000 bytes"):
            await proxy.request_json("GET", "/")
        await event(target.requests[0].hung_up)


async def test_a_cancelled_call_closes_its_connection() -> None:
    async with Target().running() as target, opened(target.url) as proxy:
        target.script = Request.wait_for_hang_up
        call = asyncio.create_task(proxy.request_json("GET", "/"))
        await until(lambda: target.requests)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await event(target.requests[0].hung_up)
