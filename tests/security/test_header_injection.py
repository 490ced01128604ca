"""Nothing that a client or a trainer calls things ends a header's line upstream."""

from typing import Any

import pytest

from asgi_gateway.asgi import Receive, Scope, Send
from tests.support.asgi_client import Response
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until

API = "/api/v1"
# A trainer knows these, whatever they are.
BAD = (
    *("x\r\nX-Injected: 1", "x\nX-Injected: 1", "x\rX-Injected: 1", "x\x00", "x\x1b", "\x7f"),
    *("x\x85y", "x\u2028y", "\u00e9", "\U0001f600", "", " ", "x y", "\t", "x" * 5000),
)
# Named in the result of a save, so that nobody needs to ask for it.
SAVED = ("model-1:sample:0",)
GOOD = ("b3f0c2_a-1", "0")


async def trainer_that_knows_all(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    body = b'{"sampler_id":"x","base_model":"stand-in","session_id":"s"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def sample(gateway: Driven, sampler: str, seq_id: int) -> Response:
    body: Any = {
        "sampling_session_id": sampler,
        "seq_id": seq_id,
        "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 2},
    }
    return await gateway.client.post(f"{API}/asample", body, SDK_HEADERS)


@pytest.mark.usefixtures("each_transport")
async def test_a_trainer_that_knows_every_sampler(upstream: FakeUpstream) -> None:
    """Its word is not enough: an id goes into a header of every sample."""
    async with driven(
        upstream.url, training__embedded=True, inner=trainer_that_knows_all
    ) as gateway:
        await until(lambda: gateway.gateway._catalog.known)
        for name in BAD:
            refused = await sample(gateway, name, 0)
            assert refused.status == 404, (name, refused)
            polled = await gateway.client.post(
                f"{API}/retrieve_futures",
                {"target": {"sampling_session_id": name}, "timeout": 0},
            )
            assert polled.status in (200, 404)
        trainer = gateway.gateway._trainer
        assert trainer is not None
        for name in (*GOOD, *SAVED):
            if name in SAVED:
                trainer._paths[name] = ("default", "tinker://run/sampler_weights/step")
            assert (await sample(gateway, name, 7)).status == 200
        await until(lambda: len(upstream.requests) == len(GOOD + SAVED))
        sent = {request.headers["x-session-id"] for request in upstream.requests}
        assert sent == {f"{name}:7" for name in GOOD + SAVED}
        assert not [r for r in upstream.requests if "x-injected" in r.headers]
        assert gateway.gateway._metrics.bugs == 0


@pytest.mark.parametrize("accept", [
    "application/x-protobuf",
    "application/json, application/x-protobuf",
    "*/*;q=0.1, application/x-protobuf; q=1.0",
])  # fmt: skip
async def test_who_accepts_protobuf_gets_it(upstream: FakeUpstream, accept: str) -> None:
    assert await _kind(upstream, accept) == b"application/x-protobuf"


@pytest.mark.parametrize("accept", [
    None, "", "*/*", "application/json", "application/x-proto", "application/x-protobu",
    "x\r\nX-A: b", "\x00", "," * 5000, "text/html",
])  # fmt: skip
async def test_who_does_not_gets_json(upstream: FakeUpstream, accept: str | None) -> None:
    assert await _kind(upstream, accept) == b"application/json"


async def _kind(upstream: FakeUpstream, accept: str | None) -> bytes:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        headers = {} if accept is None else {"Accept": accept}
        reply = await gateway.client.post(
            f"{API}/retrieve_future", {"request_id": request_id}, headers
        )
        assert reply.status == 200
        assert not [name for name in reply.headers if b"\r" in name or name == b"x-a"]
        return reply.headers[b"content-type"]
