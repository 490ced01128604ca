"""A sample from its submission to its result, and why one is not taken."""

import re
from typing import Any

import pytest

from asgi_gateway.codec.sampling_pb2 import SampleResponse
from tests.support.gateway import SDK_HEADERS, Driven
from tests.support.held import Held
from tests.support.routes import API, assert_error, assert_json, ready
from tests.support.upstream import FakeUpstream, Raw, Request, answer


async def test_asample_promises_one_id_per_sequence(gateway: Driven) -> None:
    body = assert_json(await gateway.submit(num_samples=3))
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,128}", body["request_id"])
    assert len(set(body["sample_sequence_ids"])) == 3


async def test_a_repeated_submit_is_the_same_sample(
    gateway: Driven, upstream: FakeUpstream
) -> None:
    held = Held(upstream)
    first = await gateway.submit(seq_id=7)
    await held.running()
    while_running = await gateway.submit(seq_id=7)
    held.release()
    poll = await gateway.poll(first.json()["request_id"]).response()
    assert poll.status == 200
    afterwards = await gateway.submit(seq_id=7)
    assert first.body == while_running.body == afterwards.body
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 4]}]}},
        {"num_samples": 2},
        {"sampling_params": {"max_tokens": 3}},
        {"topk_sample_logprobs": 1},
        {"prompt_logprobs": True},
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_the_same_seq_id_with_another_body_is_refused(
    gateway: Driven, changed: dict[str, Any]
) -> None:
    assert (await gateway.submit(seq_id=7)).status == 200
    assert_error(await gateway.submit(seq_id=7, **changed), 422, "seq_id 7")


async def test_another_last_n_is_another_body(gateway: Driven) -> None:
    """It is not part of what goes upstream, and yet of what comes back."""
    assert (await gateway.submit(prompt_logprobs=True, prompt_logprobs_last_n=1)).status == 200
    assert_error(await gateway.submit(prompt_logprobs=True, prompt_logprobs_last_n=2), 422)
    assert_error(await gateway.submit(prompt_logprobs=True), 422)


async def test_seq_ids_beyond_two_to_the_53_are_exact(gateway: Driven) -> None:
    high = 10**18
    one, two = await gateway.submit(seq_id=high), await gateway.submit(seq_id=high + 1)
    assert one.json()["request_id"] != two.json()["request_id"]


async def test_a_result_is_protobuf(gateway: Driven) -> None:
    promise = await gateway.submit(num_samples=2)
    response = await gateway.poll(promise.json()["request_id"]).response()
    assert response.status == 200
    assert response.headers[b"content-type"] == b"application/x-protobuf"
    assert response.headers[b"content-length"] == b"%d" % len(response.body)
    assert len(SampleResponse.FromString(response.body).sequences) == 2


async def test_a_failed_sample_is_200_with_error_and_category(
    gateway: Driven, upstream: FakeUpstream
) -> None:
    async def refuses(_: Request) -> Raw:
        return answer(400, {"error": {"message": "no such token"}})

    upstream.script = refuses
    promise = await gateway.submit()
    body = assert_json(await gateway.poll(promise.json()["request_id"]).response(), category="user")
    assert "no such token" in body["error"]
    assert set(body) == {"error", "category"}


async def test_asample_of_an_unknown_sampling_session(gateway: Driven) -> None:
    assert_error(await gateway.submit(sampling_session_id="sampler-x"), 404)


@pytest.mark.parametrize("request_id", ["", "x", "x" * 200, "a:b", "ü"])
async def test_a_poll_for_an_id_never_issued(gateway: Driven, request_id: str) -> None:
    assert_error(await gateway.poll(request_id).response(), 404)


async def test_a_prompt_too_long_says_the_three_numbers(gateway: Driven) -> None:
    response = await gateway.submit(sampling_params={"max_tokens": 65534})
    assert_error(response, 400, "3 tokens", "max_tokens 65534", "65536")


async def test_a_full_gateway_says_429_and_when_to_come_again(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream.url, store__max_in_flight=2) as gateway:
        first, second = await gateway.submit(0), await gateway.submit(1)
        assert (first.status, second.status) == (200, 200)
        third = await gateway.submit(2)
        assert_error(third, 429, "store.max_in_flight")
        assert third.headers[b"retry-after"] == b"1"
        assert (await gateway.submit(1)).body == second.body, "a repeat is not a new sample"
        held.release()
        await gateway.poll(first.json()["request_id"]).response()
        assert (await gateway.submit(2)).status == 200


async def test_a_gateway_full_by_bytes(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1] * 1000}]}
    async with ready(upstream.url, store__max_bytes=3000) as gateway:
        first = await gateway.submit(0, prompt=prompt)
        assert first.status == 200
        assert_error(await gateway.submit(1, prompt=prompt), 429, "store.max_bytes")
        held.release()
        await gateway.poll(first.json()["request_id"]).response()
        assert (await gateway.submit(1, prompt=prompt)).status == 200


async def test_the_sdk_version_decides_what_an_empty_stop_means(
    gateway: Driven, upstream: FakeUpstream
) -> None:
    for seq_id, version in enumerate(["0.38.0", "0.39.1", "1.0", "0.37.9", "odd", ""]):
        body = {
            "sampling_session_id": gateway.sampling_session_id,
            "seq_id": seq_id,
            "prompt": {"chunks": [{"tokens": [1]}]},
            "sampling_params": {"max_tokens": 1, "stop": []},
        }
        headers = {**SDK_HEADERS, "X-Stainless-Package-Version": version}
        promise = await gateway.client.post(f"{API}/asample", body, headers)
        await gateway.poll(promise.json()["request_id"]).response()
    ignores = [request.json().get("ignore_eos") for request in upstream.requests]
    assert ignores == [True, True, True, None, None, None]
