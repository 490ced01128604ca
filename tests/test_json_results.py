"""Results by Accept: protobuf where the client takes it, JSON for SDKs that know nothing else."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from asgi_gateway.codec import sampling_pb2 as wire
from tests.support.asgi_client import Response
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion

LOGPROBS = [-0.1, -11.93245792388916, -9999.0]


def retrieve(gateway: Driven, request_id: str, accept: str | None, **fields: Any) -> Any:
    headers = SDK_HEADERS | ({"Accept": accept} if accept is not None else {})
    body = {"request_id": request_id, **fields}
    return gateway.client.post("/api/v1/retrieve_future", body, headers)


async def one(_: Request) -> Raw:
    return answer(200, completion([5, 6, 2], list(LOGPROBS), finish_reason="stop"))


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("application/x-protobuf", b"application/x-protobuf"),
        ("application/x-protobuf, application/json", b"application/x-protobuf"),
        ("Application/X-Protobuf;q=0.5 , application/json", b"application/x-protobuf"),
        ("application/json", b"application/json"),
        ("application/x-protobuf;q=0", b"application/json"),
        ("application/x-protobuf; Q=0.000, application/json", b"application/json"),
        ("application/x-protobuf-of-another-kind", b"application/json"),
        (None, b"application/json"),
    ],
)
async def test_accept_decides_the_form(
    upstream: FakeUpstream, accept: str | None, content_type: bytes
) -> None:
    upstream.script = one
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        result: Response = await retrieve(gateway, request_id, accept)
        assert result.headers[b"content-type"] == content_type


async def test_both_forms_say_the_same(upstream: FakeUpstream) -> None:
    upstream.script = one
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        told = (await retrieve(gateway, request_id, "application/json")).json()
        binary = await retrieve(gateway, request_id, "application/x-protobuf")
        (sequence,) = wire.SampleResponse.FromString(binary.body).sequences
        (shown,) = told["sequences"]
        assert shown["stop_reason"] == "stop"
        assert shown["tokens"] == np.frombuffer(sequence.tokens, "<i4").tolist() == [5, 6, 2]
        exact = np.frombuffer(sequence.logprobs, "<f4")
        assert (np.array(shown["logprobs"], np.float32) == exact).all()


async def test_prompt_scores_are_null_where_there_is_none(upstream: FakeUpstream) -> None:
    async def scored(_: Request) -> Raw:
        rows: list[Any] = [None]
        rows += [{str(t): {"logprob": -float(t), "rank": 1, "decoded_token": ""}} for t in (2, 3)]
        body = completion([9], [-1.0], prompt_logprobs=rows, prompt_token_ids=[1, 2, 3])
        return answer(200, body)

    upstream.script = scored
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        promise = await gateway.submit(topk_prompt_logprobs=2)
        told = (await retrieve(gateway, promise.json()["request_id"], None)).json()
        assert told["prompt_logprobs"] == [None, -2.0, -3.0]
        assert told["topk_prompt_logprobs"] == [None, [[2, -2.0]], [[3, -3.0]]]


async def test_the_json_is_made_once_and_charged(upstream: FakeUpstream) -> None:
    upstream.script = one
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        first = await retrieve(gateway, request_id, None)
        record = gateway.gateway._store.find(request_id)
        assert record is not None
        kept = record.result_json
        assert kept is not None
        assert kept == first.body
        assert record.charged_bytes == len(record.result or b"") + len(kept)
        await retrieve(gateway, request_id, None)
        assert record.result_json is kept
        assert gateway.gateway._store.charged_bytes == record.charged_bytes


async def test_a_large_result_is_announced_where_the_client_allows_it(
    upstream: FakeUpstream,
) -> None:
    upstream.script = one
    async with driven(upstream.url, poll__inline_bytes=20) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        protobuf = "application/x-protobuf"
        whole = await retrieve(gateway, request_id, protobuf, allow_metadata_only=False)
        told = (await retrieve(gateway, request_id, protobuf, allow_metadata_only=True)).json()
        assert told["status"] == "complete_metadata"
        assert told["response_payload_size"] == len(whole.body)


async def test_an_announcement_is_no_delivery(upstream: FakeUpstream) -> None:
    upstream.script = one
    flags = {"poll__inline_bytes": 20, "session__timeout_s": 1000}
    async with driven(upstream.url, **flags) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        accept = "application/x-protobuf"
        announced = await retrieve(gateway, request_id, accept, allow_metadata_only=True)
        assert announced.json()["status"] == "complete_metadata"
        await gateway.advance(301)
        fetched = await retrieve(gateway, request_id, accept, allow_metadata_only=False)
        assert fetched.status == 200


def test_nan_is_not_json() -> None:
    assert msgspec.json.encode(math.nan) == b"null"
