"""Every route, by what a client sees: its good answer, its refusals, and whose path it is."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asgi_gateway import Gateway
from asgi_gateway.asgi import Message, Receive, Scope, Send
from asgi_gateway.codec.sampling_pb2 import SampleResponse
from tests.support.asgi_client import AsgiClient, Response, turns
from tests.support.clock import ManualClock
from tests.support.gateway import SDK_HEADERS, Driven, driven, settings
from tests.support.held import Held, metric
from tests.support.upstream import FakeUpstream, Raw, Request, answer

API = "/api/v1"
NOWHERE = "http://127.0.0.1:9"

POSTS = [
    f"{API}/asample",
    f"{API}/retrieve_future",
    f"{API}/session_heartbeat",
    f"{API}/telemetry",
    f"{API}/client/config",
    f"{API}/client/dynamic_config",
    f"{API}/create_session",
    f"{API}/create_sampling_session",
    f"{API}/sessions/session-1/finish",
]
GETS = [
    f"{API}/get_server_capabilities",
    f"{API}/healthz",
    f"{API}/samplers/sampler-1",
    "/metrics",
]
READING_POSTS = [path for path in POSTS if not path.endswith("telemetry")]


@contextlib.asynccontextmanager
async def ready(url: str, **flags: Any) -> AsyncIterator[Driven]:
    """A gateway with one session and one sampling session."""
    async with driven(url, **flags) as gateway:
        await gateway.handshake()
        yield gateway


def assert_error(response: Response, status: int, *words: str) -> None:
    """An error is JSON with a `detail` and says its length: the SDK takes less as noise."""
    assert response.status == status, response.body
    assert response.headers[b"content-type"] == b"application/json"
    assert response.headers[b"content-length"] == b"%d" % len(response.body)
    detail = response.json()["detail"]
    assert isinstance(detail, str)
    for word in words:
        assert word in detail


def assert_json(response: Response, **fields: Any) -> Any:
    assert response.status == 200, response.body
    assert response.headers[b"content-type"] == b"application/json"
    assert response.headers[b"content-length"] == b"%d" % len(response.body)
    body = response.json()
    assert {name: body[name] for name in fields} == fields
    return body


# --- good answers -------------------------------------------------------------------------------


@pytest.fixture
async def gateway(upstream: FakeUpstream) -> AsyncIterator[Driven]:
    async with ready(upstream.url) as made:
        yield made


async def test_client_config_says_the_configured_limits(upstream: FakeUpstream) -> None:
    async with driven(upstream.url, client__sample_max_concurrent_requests=77) as gateway:
        response = await gateway.client.post(f"{API}/client/config", {"sdk_version": "0.38.0"})
    body = assert_json(response, sample_max_concurrent_requests=77)
    assert set(body) == {
        "sample_max_concurrent_requests",
        "sample_dispatch_bytes_semaphore_size",
        "inflight_response_bytes_semaphore_size",
        "sample_use_retrieve_futures",
        "sample_join_sampling_session",
    }


async def test_dynamic_config_says_when_to_ask_again(gateway: Driven) -> None:
    response = await gateway.client.post(f"{API}/client/dynamic_config", {"sdk_version": "0.38.0"})
    assert_json(response, refresh_interval_sec=300)


async def test_create_session(gateway: Driven) -> None:
    one, two = [
        assert_json(
            await gateway.client.post(f"{API}/create_session", {"tags": [], "user_metadata": {}}),
            type="create_session",
        )
        for _ in range(2)
    ]
    assert one["session_id"] != two["session_id"]


async def created(gateway: Driven, seq_id: int, **fields: Any) -> Response:
    return await gateway.client.post(
        f"{API}/create_sampling_session",
        {"session_id": gateway.session_id, "sampling_session_seq_id": seq_id, **fields},
    )


async def test_create_sampling_session_is_idempotent(gateway: Driven) -> None:
    first = await created(gateway, 5, base_model="stand-in")
    body = assert_json(first, type="create_sampling_session")
    assert ":" not in body["sampling_session_id"]
    assert (await created(gateway, 5, base_model="stand-in")).body == first.body
    other = await created(gateway, 6, base_model="stand-in")
    assert other.json()["sampling_session_id"] != body["sampling_session_id"]


async def test_the_same_number_for_other_weights_is_refused(upstream: FakeUpstream) -> None:
    async with ready(upstream.url, models__base=["stand-in", "alias=stand-in"]) as gateway:
        assert_error(await created(gateway, 0, base_model="alias"), 422, "0", "another model")
        assert (await created(gateway, 0, base_model="stand-in")).status == 200


async def test_numbers_belong_to_their_session(gateway: Driven) -> None:
    first = gateway.sampling_session_id
    await gateway.handshake()
    assert gateway.sampling_session_id != first


async def test_an_adapter_is_served_by_its_path() -> None:
    adapter = {"id": "run-1_ckpt", "parent": "stand-in"}
    fake = FakeUpstream({"data": [{"id": "stand-in"}, adapter]})
    async with fake.running() as upstream, ready(upstream.url) as gateway:
        path = "tinker://run-1/sampler_weights/ckpt"
        made = assert_json(await created(gateway, 1, model_path=path))
        sampler = await gateway.client.get(f"{API}/samplers/{made['sampling_session_id']}")
    assert_json(
        sampler,
        sampler_id=made["sampling_session_id"],
        base_model="stand-in",
        model_path=path,
    )


async def test_sampler_of_a_base_model(gateway: Driven) -> None:
    response = await gateway.client.get(f"{API}/samplers/{gateway.sampling_session_id}")
    body = assert_json(response, sampler_id=gateway.sampling_session_id, base_model="stand-in")
    assert "model_path" not in body


async def test_an_unknown_sampler_is_404(gateway: Driven) -> None:
    assert_error(await gateway.client.get(f"{API}/samplers/sampler-x"), 404)


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


async def test_heartbeat(gateway: Driven) -> None:
    body = {"session_id": gateway.session_id, "type": "session_heartbeat"}
    response = await gateway.client.post(f"{API}/session_heartbeat", body)
    assert_json(response, type="session_heartbeat")


async def test_a_heartbeat_of_a_session_never_issued_is_404(gateway: Driven) -> None:
    response = await gateway.client.post(f"{API}/session_heartbeat", {"session_id": "session-x"})
    assert_error(response, 404)


async def test_capabilities_list_the_models(upstream: FakeUpstream) -> None:
    async with driven(upstream.url, models__base=["org/model=stand-in"]) as gateway:
        body = assert_json(await gateway.client.get(f"{API}/get_server_capabilities"))
    assert body["supported_models"] == [
        {
            "model_name": "org/model",
            "max_context_length": 65536,
            "sampleable": True,
            "trainable": False,
        }
    ]


async def test_healthz(gateway: Driven) -> None:
    assert_json(await gateway.client.get(f"{API}/healthz"), status="ok")


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", b"\xff\x00", b"x" * (256 << 10)])
async def test_telemetry_takes_anything_up_to_its_cap(gateway: Driven, data: bytes) -> None:
    response = await gateway.client.post(f"{API}/telemetry", data)
    assert_json(response, status="accepted")


async def test_telemetry_over_its_cap(gateway: Driven) -> None:
    response = await gateway.client.post(f"{API}/telemetry", b"x" * ((256 << 10) + 1))
    assert_error(response, 413)


# --- finish -------------------------------------------------------------------------------------


async def finished(gateway: Driven) -> Response:
    return await gateway.client.post(
        f"{API}/sessions/{gateway.session_id}/finish",
        {"reason": {"type": "success"}, "detail": None},
    )


async def test_finish_ends_the_session(gateway: Driven, upstream: FakeUpstream) -> None:
    done = (await gateway.submit(0)).json()["request_id"]
    assert (await gateway.poll(done).response()).status == 200
    held = Held(upstream)
    running = (await gateway.submit(1)).json()["request_id"]
    await held.running(2)
    parked = gateway.poll(running)
    await turns()

    assert_json(await finished(gateway))
    assert_error(await parked.response(), 410)
    assert_error(await gateway.poll(running).response(), 410)
    assert_error(await gateway.poll(done).response(), 410)
    assert_error(await gateway.submit(2), 404, "finished")
    assert_error(await gateway.submit(0), 404, "finished")
    heartbeat = await gateway.client.post(
        f"{API}/session_heartbeat", {"session_id": gateway.session_id}
    )
    assert_error(heartbeat, 410)
    assert_error(await gateway.client.get(f"{API}/samplers/{gateway.sampling_session_id}"), 404)
    async with asyncio.timeout(2):
        await upstream.requests[1].hung_up.wait()


async def test_finishing_again_is_fine(gateway: Driven) -> None:
    assert (await finished(gateway)).status == 200
    assert (await finished(gateway)).status == 200


async def test_finishing_a_session_never_issued_is_404(gateway: Driven) -> None:
    assert_error(await gateway.client.post(f"{API}/sessions/session-x/finish"), 404)


async def test_finish_leaves_other_sessions_alone(gateway: Driven, upstream: FakeUpstream) -> None:
    held = Held(upstream)
    other = (await gateway.submit()).json()["request_id"]
    await held.running()
    await gateway.handshake()
    await finished(gateway)
    held.release()
    assert (await gateway.poll(other).response()).status == 200


# --- refusals -----------------------------------------------------------------------------------


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


async def test_an_unknown_base_model_names_the_served(gateway: Driven) -> None:
    response = await created(gateway, 1, base_model="other")
    assert_error(response, 400, "'other'", "served: stand-in")


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 10_000, "\n"])
async def test_a_strange_base_model(gateway: Driven, name: str) -> None:
    body = {"session_id": gateway.session_id, "sampling_session_seq_id": 1, "base_model": name}
    response = await gateway.client.post(
        f"{API}/create_sampling_session", json.dumps(body).encode()
    )
    assert_error(response, 400)
    assert len(response.body) < 1000


@pytest.mark.parametrize(
    "path", ["run/ckpt", "tinker://run", "tinker://../x/y", "tinker://a/b c", "tinker://run/x/none"]
)
async def test_a_model_path_that_leads_nowhere(gateway: Driven, path: str) -> None:
    assert_error(await created(gateway, 1, model_path=path), 400, "model_path")


async def test_no_model_at_all(gateway: Driven) -> None:
    assert_error(await created(gateway, 1), 400, "base_model or model_path")


async def test_a_sampling_session_of_an_unknown_session(gateway: Driven) -> None:
    gateway.session_id = "session-x"
    assert_error(await created(gateway, 1, base_model="stand-in"), 404)


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


async def test_an_upstream_that_is_down_is_503() -> None:
    async with driven(NOWHERE) as gateway:
        session = await gateway.client.post(f"{API}/create_session", {})
        gateway.session_id = session.json()["session_id"]
        for response in (
            await created(gateway, 0, base_model="stand-in"),
            await created(gateway, 0, model_path="tinker://run/weights/ckpt"),
            await gateway.client.get(f"{API}/get_server_capabilities"),
        ):
            assert_error(response, 503, "upstream")
            assert response.headers[b"retry-after"] == b"1"


async def test_a_bug_is_a_500_that_tells_nothing(
    gateway: Driven, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a secret of the inside")

    monkeypatch.setattr(gateway.gateway._catalog, "supported", broken)
    response = await gateway.client.get(f"{API}/get_server_capabilities")
    assert_error(response, 500)
    assert b"secret" not in response.body
    assert "a secret of the inside" in caplog.text
    assert metric((await gateway.client.get("/metrics")).body, "bugs_total") == 1


async def test_a_client_that_leaves_before_its_body_is_there_gets_nothing(gateway: Driven) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": f"{API}/asample", "headers": []}
    await gateway.gateway(scope, receive, send)
    assert sent == []


# --- metrics ------------------------------------------------------------------------------------


async def test_metrics_count_what_happened(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with ready(upstream.url, upstream__max_connections=2, store__max_in_flight=3) as gateway:
        ids = [(await gateway.submit(seq_id)).json()["request_id"] for seq_id in range(3)]
        assert (await gateway.submit(3)).status == 429
        await held.running(2)
        parked = gateway.poll(ids[0])
        await turns()
        response = await gateway.client.get("/metrics")
        assert response.status == 200
        assert response.headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
        before = response.body
        held.release()
        result = await parked.response()
        await gateway.poll(ids[1]).response()
        await gateway.poll(ids[2]).response()
        after = (await gateway.client.get("/metrics")).body

    assert metric(before, "samples_inflight") == 3
    assert metric(before, "samples_queued") == 1
    assert metric(before, "samples_held") == 3
    assert metric(before, "polls_inflight") == 1
    assert metric(before, "results_held_bytes") == 0
    assert metric(before, "charged_bytes") > 0
    assert metric(before, "sessions") == 1
    assert metric(before, "admission_rejected_total", reason="in_flight") == 1
    assert metric(before, "samples_total", outcome="succeeded") == 0

    assert metric(after, "samples_inflight") == 0
    assert metric(after, "samples_queued") == 0
    assert metric(after, "samples_held") == 3
    assert metric(after, "polls_inflight") == 0
    assert metric(after, "results_held_bytes") == 3 * len(result.body)
    assert metric(after, "charged_bytes") == 3 * len(result.body)
    assert metric(after, "samples_total", outcome="succeeded") == 3
    assert metric(after, "polls_total", result="ready") == 3
    name = upstream.url.removeprefix("http://")
    assert metric(after, "upstream_requests_total", upstream=name, code="ok") == 3
    assert metric(after, "bugs_total") == 0


async def test_metrics_are_in_the_text_format(gateway: Driven) -> None:
    await gateway.poll((await gateway.submit()).json()["request_id"]).response()
    text = (await gateway.client.get("/metrics")).body.decode()
    assert text.endswith("\n")
    described = set()
    for line in text.splitlines():
        if line.startswith("# "):
            kind, name = line.split(" ")[1:3]
            assert kind in ("HELP", "TYPE")
            described.add(name)
        else:
            label = r'[a-z]+="[^"]*"'
            found = re.fullmatch(rf"([a-z_]+)(\{{{label}(,{label})?\}})? [0-9.e+-]+", line)
            assert found, line
            # A summary and a histogram are described once and have several lines.
            family = re.sub(r"_(sum|count|bucket)$", "", found[1])
            assert {family, found[1]} & described
            assert family.startswith(("asgi_gateway_", "process_"))


# --- whose path it is ---------------------------------------------------------------------------


class Inner:
    """An application that keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Scope, Receive, Send]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls.append((scope, receive, send))


async def unused_receive() -> Message:
    raise AssertionError("the gateway read what is not its own")


async def unused_send(_: Message) -> None:
    raise AssertionError("the gateway answered what is not its own")


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "http", "method": "GET", "path": "/", "headers": []},
        {"type": "http", "method": "POST", "path": f"{API}/forward_backward", "headers": []},
        {"type": "http", "method": "POST", "path": "/asample", "root_path": "", "headers": []},
        {"type": "http", "method": "POST", "path": "/x/api/v1/asample", "root_path": "/y"},
        {"type": "http", "method": "GET", "path": "/xmetrics", "root_path": "/x", "headers": []},
        {"type": "websocket", "path": f"{API}/asample", "headers": []},
        {"type": "something-new"},
    ],
    ids=lambda scope: f"{scope['type']} {scope.get('path', '')}",
)
async def test_what_is_not_ours_goes_to_the_inner_application_untouched(scope: Scope) -> None:
    inner = Inner()
    gateway = Gateway(settings(NOWHERE), inner, clock=ManualClock())
    before = dict(scope)
    await gateway(scope, unused_receive, unused_send)
    ((given_scope, given_receive, given_send),) = inner.calls
    assert given_scope is scope
    assert scope == before
    assert given_receive is unused_receive
    assert given_send is unused_send


async def test_what_is_ours_does_not_reach_the_inner_application() -> None:
    inner = Inner()
    gateway = Gateway(settings(NOWHERE), inner, clock=ManualClock())
    async with gateway.running():
        client = AsgiClient(gateway)
        assert (await client.get(f"{API}/healthz")).status == 200
        assert_error(await client.get(f"{API}/asample"), 405)
    assert inner.calls == []


async def test_below_a_root_path() -> None:
    gateway = Gateway(settings(NOWHERE), clock=ManualClock())
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    async with gateway.running():
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"/mounted{API}/healthz",
            "root_path": "/mounted",
            "headers": [],
        }
        await gateway(scope, receive, send)
    assert sent[0]["status"] == 200


async def test_a_websocket_without_an_inner_application_is_closed() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    gateway = Gateway(settings(NOWHERE), clock=ManualClock())
    await gateway({"type": "websocket", "path": "/"}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_two_gateways_in_one_process_share_nothing(upstream: FakeUpstream) -> None:
    async with ready(upstream.url) as one, ready(upstream.url) as two:
        promise = await one.submit()
        request_id = promise.json()["request_id"]
        assert (await one.poll(request_id).response()).status == 200
        assert_error(await two.submit(sampling_session_id=one.sampling_session_id), 404)
        heartbeat = {"session_id": one.session_id}
        assert_error(await two.client.post(f"{API}/session_heartbeat", heartbeat), 404)
        # A well-formed id of another epoch gets the benefit of the doubt.
        assert_error(await two.poll(request_id).response(), 410)
        metrics = [(await each.client.get("/metrics")).body for each in (one, two)]
        assert [metric(text, "samples_held") for text in metrics] == [1, 0]
        assert [metric(text, "polls_total", result="ready") for text in metrics] == [1, 0]

        await finished(two)
        assert (await one.poll(request_id).response()).status == 200
        assert (await one.submit(1)).status == 200


async def test_closing_one_gateway_leaves_the_other_serving(upstream: FakeUpstream) -> None:
    async with ready(upstream.url) as one:
        async with ready(upstream.url) as two:
            assert (await two.submit()).status == 200
        promise = await one.submit()
        response = await one.poll(promise.json()["request_id"]).response()
    assert response.status == 200


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
