"""What the proxy does when one side breaks, on real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from asgi_gateway.asgi import Message, Receive, Scope, Send
from asgi_gateway.training.proxy import Proxy
from tests.support.asgi_client import AsgiClient
from tests.support.waiting import event, until
from tests.training.caller import ask, call
from tests.training.conftest import Front, front, opened
from tests.training.target import Request, Target, echo

CUT = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 50,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n32\r\n" + b"x" * 50 + b"\r\n",
]


@pytest.fixture(scope="module", params=["uvicorn", "hypercorn", "granian"])
def any_front(request: pytest.FixtureRequest) -> Iterator[Front]:
    with front(request.param) as started:
        yield started


@pytest.fixture
async def behind(any_front: Front) -> AsyncIterator[Target]:
    """The trainer behind `any_front`."""
    async with Target().running(any_front.trainer_port) as running:
        yield running


async def test_no_trainer_is_503_with_retry_after(uvicorn_front: Front) -> None:
    for method in ("GET", "POST"):
        answer = await ask(uvicorn_front.port, method, "/api/v1/create_model", body=b"{}")
        assert (answer.status, answer.all("retry-after")) == (503, ["1"])
        assert b'{"detail":"cannot connect to the trainer: ' in answer.body


@pytest.mark.servers
async def test_a_body_and_its_answer(any_front: Front, behind: Target) -> None:
    heard = (await ask(any_front.port, "POST", "/a%2Fb?c=%2F", body=b"x" * 300_000)).heard()
    assert (heard.method, heard.target, heard.length) == ("POST", "/a%2Fb?c=%2F", 300_000)


@pytest.mark.servers
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("cut", CUT)
async def test_an_answer_that_breaks_is_not_completed(
    any_front: Front, behind: Target, cut: bytes, *, reset: bool
) -> None:
    arrived = asyncio.Event()

    async def script(request: Request) -> None:
        await request.write(cut)
        await event(arrived)
        request.hang_up(reset=reset)

    behind.script = script
    async with call(any_front.port) as one:
        await one.send("POST", "/", "content-length: 0")
        # The head is read first, so that the break comes after it.
        assert (await one.head())[0] == 200
        arrived.set()
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                rest = await one.reader.read()
                assert not rest.endswith(b"0\r\n\r\n")
                assert len(rest) < 100


async def test_an_answer_that_ends_with_its_connection(
    uvicorn_front: Front, target: Target
) -> None:
    """As of HTTP/1.0: whole where the trainer closed, cut where it reset the connection."""
    for reset in (False, True):
        arrived = asyncio.Event()

        async def script(request: Request, arrived: asyncio.Event = arrived) -> None:
            await request.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 50)
            await event(arrived)
            request.hang_up(reset=request.target == "/reset")

        target.script = script
        async with call(uvicorn_front.port) as one:
            await one.send("GET", "/reset" if reset else "/close")
            status, headers = await one.head()
            assert (status, dict(headers)["transfer-encoding"]) == (200, "chunked")
            body = await one.chunk()
            arrived.set()
            if reset:
                with pytest.raises((ValueError, asyncio.IncompleteReadError, ConnectionError)):
                    await one.chunk()
            else:
                assert await one.chunk() == b""
            assert body == b"x" * 50


@pytest.mark.servers
async def test_a_client_that_leaves_ends_a_held_request(any_front: Front, behind: Target) -> None:
    behind.script = Request.wait_for_hang_up
    async with call(any_front.port) as one:
        await one.send("POST", "/poll", "content-length: 2", body=b"{}")
        await until(lambda: behind.requests)
        assert not behind.requests[0].hung_up.is_set()
    await event(behind.requests[0].hung_up)


@pytest.mark.servers
async def test_a_client_that_leaves_while_sending(any_front: Front, behind: Target) -> None:
    finished: list[str] = []

    async def script(request: Request) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ValueError):
            finished.append((await request.heard()).sha256)
        request.hung_up.set()

    behind.script = script
    for framing in ("content-length: 500000", "transfer-encoding: chunked"):
        async with call(any_front.port) as one:
            await one.send("POST", "/", framing)
            one.writer.write((b"" if "length" in framing else b"3e8\r\n") + b"x" * 1000)
            await until(lambda: behind.requests)
        await event(behind.requests.pop().hung_up)
    assert not finished, "half a body was passed on as a whole one"


@pytest.mark.servers
async def test_a_client_that_leaves_while_reading(any_front: Front, behind: Target) -> None:
    async def script(request: Request) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                await request.write(b"x" * 100_000)
                await asyncio.sleep(0.001)

    behind.script = script
    async with call(any_front.port) as one:
        await one.send("GET", "/")
        await one.head()
    await event(behind.requests[0].hung_up)


@pytest.mark.parametrize(("method", "tries"), [("POST", 1), ("PATCH", 1), ("GET", 2), ("PUT", 2)])
async def test_a_trainer_that_hangs_up_before_it_answers(
    uvicorn_front: Front, target: Target, method: str, tries: int
) -> None:
    async def script(request: Request) -> None:
        await request.heard()
        request.hang_up()

    target.script = script
    answer = await ask(uvicorn_front.port, method, "/")
    assert (answer.status, answer.whole) == (502, True)
    assert b'{"detail":"the trainer did not answer: ' in answer.body
    assert len(target.requests) == tries


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("DELETE", 200), ("POST", 502)])
async def test_only_idempotent_methods_survive_a_closing_connection(
    uvicorn_front: Front, target: Target, method: str, status: int
) -> None:
    """The trainer closes an idle connection just as the next request is written to it."""

    async def script(request: Request) -> None:
        if request.nth == 2:
            request.hang_up()
        else:
            await echo(request)

    target.script = script
    assert (await ask(uvicorn_front.port, "GET", "/first")).status == 200
    assert (await ask(uvicorn_front.port, method, "/second")).status == status
    assert target.requests[1].connection == target.requests[0].connection
    assert len(target.requests) == (3 if status == 200 else 2)


async def test_an_early_answer_ends_the_upload(uvicorn_front: Front, target: Target) -> None:
    async def script(request: Request) -> None:
        await request.answer(413, b'{"detail":"too large"}')
        await request.wait_for_hang_up()

    target.script = script
    async with call(uvicorn_front.port) as one:
        await one.send("POST", "/", "content-length: 100000000", body=b"x" * 100_000)
        status, headers = await one.head()
    assert (status, dict(headers)["content-length"]) == (413, "22")
    await event(target.requests[0].hung_up)


async def test_garbage_instead_of_an_answer(uvicorn_front: Front, target: Target) -> None:
    async def script(request: Request) -> None:
        await request.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    target.script = script
    assert (await ask(uvicorn_front.port, "POST", "/")).status == 502


async def test_a_trainer_that_falls_silent_is_504() -> None:
    async with Target().running() as target, opened(target.url, read_timeout_s=0.05) as proxy:
        target.script = Request.wait_for_hang_up
        answer = await AsgiClient(proxy).post("/api/v1/retrieve_future")
        assert answer.status == 504
        await event(target.requests[0].hung_up)


async def test_an_idle_connection_is_given_up_before_the_trainer_does() -> None:
    async with Target().running() as target, opened(target.url, keepalive_s=0.05) as proxy:
        assert (await AsgiClient(proxy).get("/")).status == 200
        await event(target.requests[0].hung_up)
        assert (await AsgiClient(proxy).get("/")).status == 200
        assert target.connections == 2


async def test_patience_waits_for_the_trainer(
    uvicorn_front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asgi_gateway.training.proxy.PATIENCE_STEP_S", 0.02)
    async with opened(f"http://127.0.0.1:{uvicorn_front.trainer_port}") as proxy:

        async def patient(scope: Scope, receive: Receive, send: Send) -> None:
            await proxy.forward(scope, receive, send, patience_s=20.0)

        waiting = AsgiClient(patient).start("POST", "/poll", b"{}")
        left = AsgiClient(patient).start("POST", "/poll", b"{}")
        await until(lambda: proxy.active == 2)
        left.hang_up()
        await until(lambda: proxy.active == 1)
        async with Target().running(uvicorn_front.trainer_port) as target:
            assert (await waiting.response()).status == 200
            assert len(target.requests) == 1


async def test_polls_that_the_trainer_holds_are_let_go_at_the_end() -> None:
    """And what it is answering then, or is no poll, ends as it would."""

    async def begin(request: Request) -> None:
        await request.heard()
        if request.target == "/begun":
            await request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na")
        begun.set()
        await going_on.wait()
        await request.write(b"b")

    begun, going_on = asyncio.Event(), asyncio.Event()
    async with Target().running() as target, opened(target.url) as proxy:

        async def patient(scope: Scope, receive: Receive, send: Send) -> None:
            await proxy.forward(scope, receive, send, patience_s=20.0)

        target.script = begin
        answering = AsgiClient(patient).start("POST", "/begun", b"{}")
        await event(begun)
        target.script = Request.wait_for_hang_up
        held = AsgiClient(patient).start("POST", "/poll", b"{}")
        step = AsgiClient(proxy).start("POST", "/step", b"{}")
        await until(lambda: len(target.requests) == 3)
        proxy.stop_holding()
        told = await held.response()
        assert (told.status, told.json()["type"]) == (408, "try_again")
        assert told.headers[b"connection"] == b"close"
        later = await AsgiClient(patient).post("/poll", b"{}")
        assert later.status == 408
        assert [answering.answered, step.answered] == [False, False]
        going_on.set()
        whole = await answering.response()
        assert (whole.status, whole.body) == (200, b"ab")
        step.hang_up()


async def test_closing_ends_what_is_held() -> None:
    async with Target().running() as target, opened(target.url) as proxy:
        target.script = Request.wait_for_hang_up
        held = AsgiClient(proxy).start("POST", "/poll", b"{}")
        await until(lambda: target.requests)
        await proxy.close()
        assert (await held.response()).status == 502
        await event(target.requests[0].hung_up)


async def test_a_server_that_cancels_the_request_ends_it_upstream() -> None:
    async def silent(_: Message) -> None:
        raise AssertionError("nothing was to be answered")

    messages: list[Message] = [{"type": "http.request", "body": b""}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    async with Target().running() as target, opened(target.url) as proxy:
        target.script = Request.wait_for_hang_up
        serving = asyncio.create_task(proxy(scope, receive, silent))
        await until(lambda: target.requests)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await event(target.requests[0].hung_up)
        assert proxy.active == 0


async def test_a_closed_proxy_is_503() -> None:
    proxy = Proxy("http://127.0.0.1:1")
    assert (await AsgiClient(proxy).get("/")).status == 503


async def test_websockets_are_refused() -> None:
    sent = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: object) -> None:
        sent.append(message)

    await Proxy("http://127.0.0.1:1")({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]
