"""The gateway around an inner application, which is a trainer or is not."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock

from asgi_gateway.asgi import Receive, Scope, Send
from tests.support.gateway import driven
from tests.support.held import metric
from tests.support.upstream import FakeUpstream

API = "/api/v1"


async def test_an_inner_trainer_sees_ordinary_requests(upstream: FakeUpstream) -> None:
    """With its host's state and mount point, and a client that stays until it is answered."""
    seen: list[Any] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        leaving = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        assert not leaving.done()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece, more in ((b'{"session_id":', True), (b'"s-1"}', False)):
            await send({"type": "http.response.body", "body": piece, "more_body": more})
        assert (await leaving)["type"] == "http.disconnect"
        kept = ("path", "raw_path", "root_path", "state", "method", "client")
        seen.append([{key: scope.get(key) for key in kept}, dict(scope["headers"]), body])

    async with driven(upstream.url, training__embedded=True, inner=inner) as gateway:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v/api/v1/create_session",
            "root_path": "/v",
            "state": {"db": 1},
            "client": ("10.0.0.1", 5),
            "query_string": b"a=b",
            "headers": [(b"host", b"h"), (b"x-api-key", b"k"), (b"content-length", b"2")],
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        messages = [{"type": "http.request", "body": b"{}"}]
        receive = AsyncMock(side_effect=lambda: messages.pop())
        await gateway.gateway(scope, receive, send)
    assert sent[1]["body"] == b'{"session_id":"s-1"}'
    ((kept, headers, body),) = seen
    assert kept == {
        "path": "/v/api/v1/create_session",
        "raw_path": b"/v/api/v1/create_session",
        "root_path": "/v",
        "state": {"db": 1},
        "method": "POST",
        "client": ("10.0.0.1", 5),
    }
    assert (headers[b"host"], headers[b"x-api-key"], headers[b"content-length"]) == (
        b"h",
        b"k",
        b"2",
    )
    assert body == b"{}"


async def test_an_inner_trainer_that_fails_has_answered_500(upstream: FakeUpstream) -> None:
    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("its own fault")

    async with driven(upstream.url, training__embedded=True, inner=inner) as gateway:
        answer = await gateway.client.post(f"{API}/create_session", b"{}")
        assert (answer.status, answer.body) == (500, b"Internal Server Error")
        assert metric((await gateway.client.get("/metrics")).body, "bugs_total") == 0


async def test_an_inner_application_that_is_no_trainer_gets_what_is_not_ours(
    upstream: FakeUpstream,
) -> None:
    """Untouched: escapes and queries in targets, bodies, ids of its own on our routes."""

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        target = scope["raw_path"] + b"?" + scope["query_string"]
        headers = [(b"x-target", target), (b"x-method", scope["method"].encode())]
        await send({"type": "http.response.start", "status": 299, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with driven(upstream.url, inner=inner) as gateway:
        for method, target, body in (
            ("PUT", "/api/v1/un%2Fknown//x?a=%2F", b"\x00\xff"),
            ("POST", "/api/v1/retrieve_future?", b'{"request_id" : "theirs"}'),
            ("POST", "/api/v1/cancel_future?", b'{"request_id" : "17"}'),
            ("GET", "/?", b""),
        ):
            answer = await gateway.client.start(method, target, body).response()
            assert (answer.status, answer.body) == (299, body), target
            assert answer.headers == {b"x-target": target.encode(), b"x-method": method.encode()}
        # Sessions and samplers are the gateway's: it makes them, and knows no others.
        await gateway.handshake()
        assert (await gateway.submit()).status == 200
        assert (await gateway.client.get("/api/v1/samplers/theirs")).status == 404
