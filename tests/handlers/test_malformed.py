"""Requests that no route takes: method, path, body and fields."""

import pytest

from tests.support.gateway import Driven, driven
from tests.support.routes import API, GETS, POSTS, READING_POSTS, assert_error
from tests.support.upstream import FakeUpstream


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "post"])
async def test_another_method_than_post(gateway: Driven, method: str, path: str) -> None:
    response = await gateway.client.start(method, path).response()
    assert_error(response, 405, "POST")
    assert response.headers[b"allow"] == b"POST"


@pytest.mark.parametrize("path", GETS)
async def test_another_method_than_get(gateway: Driven, path: str) -> None:
    response = await gateway.client.post(path)
    assert_error(response, 405, "GET")
    assert response.headers[b"allow"] == b"GET"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        f"{API}/asampl",
        f"{API}/asample/",
        f"{API}/samplers/",
        f"{API}/samplers/a/b",
        f"{API}/sessions//finish",
        f"{API}/sessions/a/b/finish",
        "/metrics/x",
        "/API/v1/asample",
        "/ü\n\"'",
    ],
)
async def test_an_unknown_path(gateway: Driven, path: str) -> None:
    assert_error(await gateway.client.get(path), 404, "no route")
    assert_error(await gateway.client.post(path), 404, "no route")


@pytest.mark.parametrize("path", READING_POSTS)
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"x"', b"1", b"{}x", b"\xff\xfe"])
async def test_a_body_that_is_no_json_object(gateway: Driven, path: str, data: bytes) -> None:
    assert_error(await gateway.client.post(path, data), 400)


async def test_text_that_is_not_utf_8(gateway: Driven) -> None:
    for path in (f"{API}/session_heartbeat", f"{API}/create_sampling_session"):
        body = b'{"session_id":"\xff","sampling_session_seq_id":0}'
        assert_error(await gateway.client.post(path, body), 400)


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        (f"{API}/retrieve_future", {}, "request_id"),
        (f"{API}/retrieve_future", {"request_id": 1}, "request_id"),
        (f"{API}/session_heartbeat", {}, "session_id"),
        (f"{API}/create_session", {"tags": "x"}, "tags"),
        (f"{API}/create_sampling_session", {"session_id": "x"}, "sampling_session_seq_id"),
        (f"{API}/asample", {"sampling_session_id": "x", "seq_id": 1.5}, "seq_id"),
        (f"{API}/asample", {"sampling_session_id": "x", "seq_id": 0}, "prompt"),
        (f"{API}/sessions/session-1/finish", {"reason": "success"}, "reason"),
    ],
)
async def test_a_field_that_is_missing_or_of_another_type(
    gateway: Driven, path: str, body: object, word: str
) -> None:
    assert_error(await gateway.client.post(path, body), 400, word)


@pytest.mark.parametrize("path", READING_POSTS)
@pytest.mark.parametrize("depth", [1100, 30_000])
async def test_deep_nesting(gateway: Driven, path: str, depth: int) -> None:
    """It raises RecursionError in the decoder, wherever in the body it is."""
    nested = b"[" * depth + b"]" * depth
    for body in (nested, b'{"unknown":' + nested + b"}"):
        assert_error(await gateway.client.post(path, body), 400)


async def test_deep_nesting_where_anything_may_stand(gateway: Driven) -> None:
    nested = b"[" * 30_000 + b"]" * 30_000
    prompt = b'{"sampling_session_id":"x","seq_id":0,"prompt":{"chunks":[{"tokens":%b}]}}' % nested
    assert_error(await gateway.client.post(f"{API}/asample", prompt), 400)
    metadata = b'{"user_metadata":{"a":%b}}' % nested
    assert_error(await gateway.client.post(f"{API}/create_session", metadata), 400)


@pytest.mark.parametrize("path", [*READING_POSTS, *GETS])
async def test_a_body_over_the_cap(upstream: FakeUpstream, path: str) -> None:
    caps = {"limits__body_bytes": 100, "limits__asample_body_bytes": 100}
    async with driven(upstream.url, **caps) as gateway:
        method = "GET" if path in GETS else "POST"
        over = await gateway.client.start(method, path, b"x" * 101).response()
        assert_error(over, 413, "100")
        within = await gateway.client.start(method, path, b"x" * 100).response()
        assert within.status != 413


async def test_a_compressed_body(gateway: Driven) -> None:
    response = await gateway.client.post(f"{API}/asample", b"x", {"Content-Encoding": "zstd"})
    assert_error(response, 415)
