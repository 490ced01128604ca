"""Every count and length that a request may have: one below its limit, at it, and one above."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asgi_gateway import protocol
from asgi_gateway.sessions import MAX_SAMPLERS
from asgi_gateway.store.targets import MAX_CLONES
from asgi_gateway.upstream import request as upstream_request
from asgi_gateway.upstream.request import MAX_SEQUENCES
from asgi_gateway.upstream.stops import KEPT_STOPS, MAX_STOP_CHARACTERS, MAX_STOPS
from tests.support.asgi_client import Response
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.upstream import FakeUpstream

API = "/api/v1"


@pytest.fixture
async def gateway(upstream: FakeUpstream) -> AsyncIterator[Driven]:
    async with driven(upstream.url) as made:
        await made.handshake()
        yield made


async def post(gateway: Driven, path: str, body: object) -> Response:
    return await gateway.client.post(f"{API}/{path}", body, SDK_HEADERS)


def detail(response: Response) -> str:
    text: str = response.json()["detail"]
    return text


# --- asample ------------------------------------------------------------------------------------


def of_samples(count: int) -> dict[str, Any]:
    return {"num_samples": count}


def of_stop_ids(count: int) -> dict[str, Any]:
    return {"sampling_params": {"max_tokens": 1, "stop": list(range(count))}}


def of_stop_text(size: int) -> dict[str, Any]:
    return {"sampling_params": {"max_tokens": 1, "stop": ["x" * (size // 2), "y" * -(-size // 2)]}}


def of_one_stop(size: int) -> dict[str, Any]:
    return {"sampling_params": {"max_tokens": 1, "stop": "x" * size}}


@pytest.mark.parametrize(
    ("fields", "limit", "field"),
    [
        (of_samples, MAX_SEQUENCES, "num_samples"),
        (of_stop_ids, MAX_STOPS, "sampling_params.stop"),
        (of_stop_text, MAX_STOP_CHARACTERS, "sampling_params.stop"),
        (of_one_stop, MAX_STOP_CHARACTERS, "sampling_params.stop"),
    ],
)
async def test_a_sample_at_a_limit(
    gateway: Driven, fields: Callable[[int], dict[str, Any]], limit: int, field: str
) -> None:
    assert (await gateway.submit(0, **fields(limit - 1))).status == 200
    assert (await gateway.submit(1, **fields(limit))).status == 200
    over = await gateway.submit(2, **fields(limit + 1))
    assert over.status == 400
    for part in (field, str(limit), str(limit + 1)):
        assert part in detail(over)


async def test_chunks_of_a_large_body_are_counted_before_they_are_decoded(gateway: Driven) -> None:
    """Eleven million of `{},` would take 900 MB."""
    chunk = {"type": "encoded_text", "tokens": [1]}
    others = 3  # the request, its prompt, its parameters
    for more, status in ((-1, 200), (0, 200), (1, 400)):
        chunks = [chunk] * (protocol.MAX_OBJECTS - others + more)
        answer = await gateway.submit(more + 1, prompt={"chunks": chunks})
        assert answer.status == status, answer.body
    assert f"over {protocol.MAX_OBJECTS} objects" in detail(answer)


async def test_parameters_of_a_large_body_are_measured_before_they_are_decoded(
    gateway: Driven,
) -> None:
    answer = await gateway.submit(0, sampling_params={"stop": [1] * (protocol.MAX_PARAMS_BYTES)})
    assert answer.status == 400
    assert f"at most {protocol.MAX_PARAMS_BYTES}" in detail(answer)
    assert "sampling_params" in detail(answer)


async def test_a_long_stop_is_not_kept_for_the_next_sample(gateway: Driven) -> None:
    """4,096 shapes are, each as long as its stop."""
    kept = upstream_request._shape.cache_info().currsize
    many = {"max_tokens": 1, "stop": list(range(KEPT_STOPS + 1))}
    for n, stop in enumerate(("z" * 2000, many["stop"])):
        params = {"max_tokens": 1, "stop": stop}
        assert (await gateway.submit(n, sampling_params=params)).status == 200
    assert upstream_request._shape.cache_info().currsize == kept


# --- batched polls ------------------------------------------------------------------------------


def acknowledging(gateway: Driven, ids: list[str], clone: int = 0) -> dict[str, Any]:
    target = {"sampling_session_id": gateway.sampling_session_id, "cloned_sampler_id": clone}
    return {"target": target, "timeout": 0, "retrieved_request_ids": ids}


async def test_acknowledged_ids_are_counted_before_they_are_decoded(
    gateway: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ["x" * 8] * protocol.MAX_ACKNOWLEDGED
    assert (await post(gateway, "retrieve_futures", acknowledging(gateway, ids))).status == 200
    over = await post(gateway, "retrieve_futures", acknowledging(gateway, ids + ["x" * 8] * 100))
    assert over.status == 400
    assert "strings" in detail(over)


@pytest.mark.parametrize(("length", "status"), [(7, 400), (8, 200), (9, 200)])
async def test_an_acknowledged_id_is_as_long_as_ids_are(
    gateway: Driven, length: int, status: int
) -> None:
    answer = await post(gateway, "retrieve_futures", acknowledging(gateway, ["x" * length]))
    assert answer.status == status


async def test_clones_that_poll(gateway: Driven) -> None:
    """Their numbers are the clients' own, and each costs a log."""
    statuses = [
        (await post(gateway, "retrieve_futures", acknowledging(gateway, [], 10**6 + n))).status
        for n in range(MAX_CLONES + 1)
    ]
    assert statuses == [200] * MAX_CLONES + [422]
    again = await post(gateway, "retrieve_futures", acknowledging(gateway, [], 10**6))
    assert again.status == 200


# --- sessions -----------------------------------------------------------------------------------


async def test_the_name_of_a_session(gateway: Driven) -> None:
    for length, status in ((1023, 200), (1024, 200), (1025, 400)):
        answer = await post(gateway, "create_session", {"display_name": "n" * length})
        assert answer.status == status
    assert "1024" in detail(answer)
    assert "display_name" in detail(answer)


async def test_the_metadata_of_a_session(gateway: Driven) -> None:
    limit = protocol.MAX_METADATA_BYTES
    for size, status in ((limit - 1, 200), (limit, 200), (limit + 1, 400)):
        metadata = {"a": "x" * (size - len('{"a":""}'))}
        answer = await post(gateway, "create_session", {"user_metadata": metadata})
        assert answer.status == status
    for part in ("user_metadata", str(limit), str(limit + 1)):
        assert part in detail(answer)


async def test_sessions_of_a_caller(upstream: FakeUpstream) -> None:
    kept = {"limits__sessions_per_caller": 3, "session__retention_s": 60, "session__timeout_s": 10}
    async with driven(upstream.url, **kept) as gateway:
        statuses = []
        for _ in range(4):
            answer = await post(gateway, "create_session", {"tags": []})
            statuses.append(answer.status)
        assert statuses == [200, 200, 200, 429]
        assert answer.headers[b"retry-after"] == b"1"
        assert "limits.sessions_per_caller" in detail(answer)
        await gateway.advance(61)
        assert (await post(gateway, "create_session", {"tags": []})).status == 200


async def test_sampling_sessions_of_a_session(
    gateway: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_SAMPLERS == 65_536
    monkeypatch.setattr("asgi_gateway.sessions.MAX_SAMPLERS", 3)
    statuses = []
    for n in (1, 2, 3, 3, 2):
        body = {
            "session_id": gateway.session_id,
            "sampling_session_seq_id": n,
            "base_model": "stand-in",
        }
        answer = await post(gateway, "create_sampling_session", body)
        statuses.append(answer.status)
    assert statuses == [200, 200, 422, 422, 200]
