"""API10: an upstream may send anything; every sample settles, and the gateway stays as it was."""

import asyncio
import logging
from random import Random
from typing import Any

import msgspec
import pytest

from asgi_gateway.codec.sampling_pb2 import SampleResponse
from asgi_gateway.store.states import State
from asgi_gateway.upstream import listing
from tests.fuzz.answers import Answers
from tests.fuzz.wire import Wire
from tests.support.gateway import driven
from tests.support.upstream import FakeUpstream, Raw, answer
from tests.support.waiting import until

COUNT = 240


@pytest.mark.usefixtures("each_transport")
async def test_every_sample_settles_whatever_the_upstream_sends(
    upstream: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    wire, answers = Wire(), Answers()
    made = iter(range(10**9))

    async def script(_: object) -> Raw:
        number = next(made)
        rng = Random(number)
        if number % 3 == 2:
            return answer(200, answers.make(rng).partition(b"\n")[2])
        data = wire.make(rng).partition(b"\n")[2]
        return Raw(data, rng.choice(("close", "close", "reset")))

    upstream.script = script
    async with driven(
        upstream.url, upstream__read_timeout_s=5, upstream__breaker_failures=0
    ) as gateway:
        await gateway.handshake()
        ids = [(await gateway.submit(n)).json()["request_id"] for n in range(COUNT)]
        store = gateway.gateway._store
        for _ in range(400):  # those that are told to wait or were not run are tried again
            if not store.in_flight:
                break
            await asyncio.sleep(0.02)
            await gateway.advance(5)
        assert store.in_flight == 0
        statuses = set()
        for request_id in ids:
            outcome = await gateway.poll(request_id).response()
            statuses.add(outcome.status)
            assert outcome.status in (200, 410)
            if outcome.headers[b"content-type"] == b"application/x-protobuf":
                for sequence in SampleResponse.FromString(outcome.body).sequences:
                    assert len(sequence.tokens) == len(sequence.logprobs)
        assert statuses == {200, 410}
        assert gateway.gateway._metrics.bugs == 0
        assert gateway.gateway._sampling._dispatch.running == 0
        assert store.counts[State.RUNNING] == 0


LISTS: tuple[Any, ...] = (
    b"", b"{}", b"[]", b"null", b"<html>", b"\xff", b"[" * 5000, b'{"data":' * 5000,
    {"data": None}, {"data": {}}, {"data": [None]}, {"data": [{}]}, {"data": [{"id": 5}]},
    {"data": [{"id": "x", "max_model_len": "many"}]}, {"data": [{"id": "x", "parent": 5}]},
    b'{"data":[{"id":"x","max_model_len":1e999}]}', b'{"data":[{"id":"\\ud800"}]}',
    {"data": [{"id": "x", "max_model_len": -1}]}, {"data": [{"id": "x", "max_model_len": 2**70}]},
    {"data": [{"id": "x\r\nX: y\x1b[2J", "max_model_len": 100}]}, {"data": [{"id": ""}]},
    {"data": [{"id": "x", "root": "../../etc/passwd", "parent": "x", "max_model_len": 10}]},
    {"data": [{"id": "x" * 100_000}]}, {"data": [{"id": f"m{i}"} for i in range(5000)]},
)  # fmt: skip


@pytest.mark.parametrize("listed", LISTS, ids=range(len(LISTS)))
async def test_a_hostile_model_list(
    listed: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readiness, capabilities and a sampler answer something that is no 5xx but 503."""
    monkeypatch.setattr(listing, "MIN_REFRESH_S", 0.0)
    body = listed if isinstance(listed, bytes) else msgspec.json.encode(listed)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await writer.drain()
        writer.close()

    asked: list[int] = []

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        asked.append(1)

    server = await asyncio.start_server(counted, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with driven(f"http://127.0.0.1:{port}") as gateway:
            await until(lambda: bool(asked))
            client = gateway.client
            session = (await client.post("/api/v1/create_session")).json()["session_id"]
            for path in ("/readyz", "/api/v1/get_server_capabilities", "/api/v1/training_runs"):
                reply = await client.get(path)
                assert reply.status in (200, 503), reply.body
                assert reply.json() is not None
            for name in ("x", "stand-in", "m1"):
                made = await client.post(
                    "/api/v1/create_sampling_session",
                    {"session_id": session, "sampling_session_seq_id": 0, "base_model": name},
                )
                assert made.status in (200, 400, 422, 503), made.body
                if made.status == 200:
                    gateway.sampling_session_id = made.json()["sampling_session_id"]
                    sample = await gateway.submit(0)
                    assert sample.status in (200, 400, 422), sample.body
                    break
            assert gateway.gateway._metrics.bugs == 0
    for record in caplog.records:
        assert "\n" not in record.getMessage()
        assert "\x1b" not in record.getMessage()
        assert len(record.getMessage()) < 2000
