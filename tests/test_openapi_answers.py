"""What a driven gateway really answers is what its document says."""

from collections.abc import AsyncIterator

import pytest

from asgi_gateway.store.targets import MAX_CLONES
from tests.support.asgi_client import turns
from tests.support.described import Described, described_gateway
from tests.support.gateway import SDK_HEADERS
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion

API = "/api/v1"
ASAMPLE = f"POST {API}/asample"
POLL = f"POST {API}/retrieve_future"
POLL_MANY = f"POST {API}/retrieve_futures"
PROTOBUF = {"Accept": "application/x-protobuf"}


@pytest.fixture
async def described(upstream: FakeUpstream) -> AsyncIterator[Described]:
    async with described_gateway(upstream.url) as gateway:
        yield gateway


def sample(described: Described, seq_id: int = 0, **fields: object) -> dict[str, object]:
    return {
        "sampling_session_id": described.gateway.sampling_session_id,
        "seq_id": seq_id,
        "prompt": {"chunks": [{"tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 2},
        **fields,
    }


async def submitted(described: Described, seq_id: int = 0, **fields: object) -> str:
    body = sample(described, seq_id, **fields)
    promise = await described.ask(ASAMPLE, body, status=200)
    request_id: str = promise.json()["request_id"]
    return request_id


async def hanging(request: Request) -> Raw:
    await request.hung_up.wait()
    return Raw()


async def silent(_: Request) -> Raw:
    return Raw(then="close")


async def test_the_handshake(described: Described) -> None:
    ask, gateway = described.ask, described.gateway
    await ask(f"POST {API}/client/config", {"sdk_version": "0.38.0"}, status=200)
    await ask(f"POST {API}/client/dynamic_config", {}, status=200)
    await ask(f"POST {API}/create_session", {"tags": []}, status=200)
    await ask(f"POST {API}/create_session", b"[]", status=400)
    create = f"POST {API}/create_sampling_session"
    wish = {
        "session_id": gateway.session_id,
        "sampling_session_seq_id": 0,
        "base_model": "stand-in",
    }
    await ask(create, wish, status=200)
    await ask(create, wish | {"session_id": "none"}, status=404)
    await ask(create, wish | {"base_model": "none"}, status=400)
    await ask(f"GET {API}/samplers/{{id}}", status=200, id=gateway.sampling_session_id)
    await ask(f"GET {API}/samplers/{{id}}", status=404, id="none")
    await ask(f"GET {API}/get_server_capabilities", status=200)


async def test_the_life_of_a_session(described: Described) -> None:
    ask, session_id = described.ask, described.gateway.session_id
    heartbeat = f"POST {API}/session_heartbeat"
    join = f"POST {API}/join_sampling_session"
    sampler = {"sampling_session_id": described.gateway.sampling_session_id}
    await ask(heartbeat, {"session_id": session_id}, status=200)
    await ask(heartbeat, {"session_id": "none"}, status=404)
    await ask(join, sampler, status=200)
    finish = f"POST {API}/sessions/{{id}}/finish"
    await ask(finish, {"reason": {"type": "success"}}, status=200, id=session_id)
    await ask(finish, {}, status=404, id="none")
    await ask(heartbeat, {"session_id": session_id}, status=410)
    await ask(join, sampler, status=404)
    wish = {"session_id": session_id, "sampling_session_seq_id": 0, "base_model": "stand-in"}
    await ask(f"POST {API}/create_sampling_session", wish, status=410)


async def test_health_metrics_and_telemetry(described: Described) -> None:
    await described.ask("GET /livez", status=200)
    await described.ask("GET /readyz", status=200)
    await described.ask(f"GET {API}/healthz", status=200)
    await described.ask("GET /metrics", status=200)
    await described.ask(f"POST {API}/telemetry", b"not even JSON", status=200)
    await described.ask(f"POST {API}/telemetry", b"x" * (256 << 10 | 1), status=413)


async def test_without_an_upstream() -> None:
    async with described_gateway("") as described:
        await described.ask("GET /readyz", status=503)
        await described.ask(f"GET {API}/get_server_capabilities", status=503)
        session = await described.ask(f"POST {API}/create_session", {}, status=200)
        wish = {"sampling_session_seq_id": 0, "base_model": "x", **session.json()}
        await described.ask(f"POST {API}/create_sampling_session", wish, status=503)


async def test_refused_submits(described: Described, upstream: FakeUpstream) -> None:
    ask = described.ask
    await ask(ASAMPLE, b"{", status=400)
    await ask(ASAMPLE, sample(described, num_samples=0), status=400)
    await ask(ASAMPLE, sample(described, sampling_session_id="none"), status=404)
    await ask(ASAMPLE, sample(described, record_stability_info=True), status=422)
    await ask(ASAMPLE, b"{}", status=415, headers={"Content-Encoding": "gzip"})
    await submitted(described)
    await ask(ASAMPLE, sample(described, num_samples=2), status=422)
    async with described_gateway(upstream.url, store__max_bytes=1) as small:
        await small.ask(ASAMPLE, sample(small), status=413)
    upstream.script = hanging
    async with described_gateway(upstream.url, store__max_in_flight=1) as full:
        await submitted(full)
        refused = await full.ask(ASAMPLE, sample(full, 1), status=429)
        assert refused.headers[b"retry-after"] == b"1"


async def test_results_of_every_kind(described: Described, upstream: FakeUpstream) -> None:
    async def with_prompt(request: Request) -> Raw:
        choice = completion([11, 12], [-1.0, -2.0], n=request.json()["n"])["choices"][0]
        choice["prompt_token_ids"] = [1, 2, 3]
        choice["prompt_logprobs"] = [None] + [
            {str(token): {"logprob": -1.5, "rank": 1, "decoded_token": "x"}} for token in (2, 3)
        ]
        return answer(200, {"id": "c", "choices": [choice], "usage": {}})

    request_id = await submitted(described)
    await described.ask(POLL, {"request_id": request_id}, status=200, headers=PROTOBUF)
    result = await described.ask(POLL, {"request_id": request_id}, status=200)
    assert result.json()["type"] == "sample"

    upstream.script = with_prompt
    request_id = await submitted(described, 1, prompt_logprobs=True, topk_prompt_logprobs=1)
    result = await described.ask(POLL, {"request_id": request_id}, status=200)
    assert result.json()["prompt_logprobs"] == [None, -1.5, -1.5]

    async def refused(_: Request) -> Raw:
        return answer(400, {"error": {"message": "no"}})

    upstream.script = refused
    request_id = await submitted(described, 2)
    result = await described.ask(POLL, {"request_id": request_id}, status=200)
    assert result.json()["category"] == "user"


async def test_a_result_that_is_only_announced(upstream: FakeUpstream) -> None:
    async with described_gateway(upstream.url, poll__inline_bytes=1) as described:
        request_id = await submitted(described)
        poll = {"request_id": request_id, "allow_metadata_only": True}
        announced = await described.ask(POLL, poll, status=200, headers=PROTOBUF)
        assert announced.json()["status"] == "complete_metadata"


async def test_polls_without_a_result(described: Described, upstream: FakeUpstream) -> None:
    await described.ask(POLL, {"request_id": "none"}, status=404)
    upstream.script = silent
    request_id = await submitted(described)
    gone = await described.gateway.poll(request_id).response()
    assert gone.status == 410
    described.conforms(POLL, gone)

    upstream.script = hanging
    request_id = await submitted(described, 1)
    poll = described.gateway.poll(request_id)
    await turns()
    await described.gateway.advance(31)
    waiting = await poll.response()
    assert waiting.status == 408
    described.conforms(POLL, waiting)


async def test_batched_polls_and_cancels(described: Described, upstream: FakeUpstream) -> None:
    sampler = {"sampling_session_id": described.gateway.sampling_session_id}
    request_id = await submitted(described)
    cancelled = await submitted(described, 1)
    await described.ask(f"POST {API}/cancel_future", {"request_id": cancelled}, status=200)
    await described.ask(f"POST {API}/cancel_future", {"request_id": "none"}, status=404)
    await described.gateway.poll(request_id).response()
    page = await described.ask(POLL_MANY, {"target": sampler, "timeout": 0.0}, status=200)
    states = {entry["request_id"]: entry["state"] for entry in page.json()["completions"]}
    assert states == {request_id: "finished", cancelled: "failed"}
    other = {"target": sampler | {"type": "training"}}
    await described.ask(POLL_MANY, other, status=400)
    unknown = {"target": {"sampling_session_id": "none"}}
    await described.ask(POLL_MANY, unknown, status=404)


@pytest.mark.parametrize("version", ["", "0", "0.38", "9" * 5000 + ".1", "1." + "9" * 5000, "a.b"])
async def test_any_version_of_the_sdk_may_be_said(described: Described, version: str) -> None:
    headers = SDK_HEADERS | {"X-Stainless-Package-Version": version}
    await described.ask(ASAMPLE, sample(described), status=200, headers=headers)


async def test_the_read_only_index(upstream: FakeUpstream) -> None:
    adapter = {"id": "run_step", "max_model_len": None, "parent": "stand-in"}
    upstream.models = {"object": "list", "data": [*upstream.models["data"], adapter]}
    async with described_gateway(upstream.url) as described:
        ask = described.ask
        for listing in ("training_runs", "checkpoints", "sessions"):
            await ask(f"GET {API}/{listing}", status=200)
        await ask(f"GET {API}/training_runs/{{id}}", status=200, id="run")
        await ask(f"GET {API}/training_runs/{{id}}", status=404, id="none")
        await ask(f"GET {API}/training_runs/{{id}}/checkpoints", status=200, id="run")
        await ask(f"GET {API}/sessions/{{id}}", status=200, id=described.gateway.session_id)
        await ask(f"GET {API}/sessions/{{id}}", status=404, id="none")
        path = {"tinker_path": "tinker://run/sampler_weights/step"}
        await ask(f"POST {API}/weights_info", path, status=200)
        await ask(f"POST {API}/weights_info", {"tinker_path": "x"}, status=400)


async def test_bounds_of_sessions_and_clones(upstream: FakeUpstream) -> None:
    async with described_gateway(upstream.url, limits__sessions_per_caller=1) as described:
        await described.ask(f"POST {API}/create_session", {"tags": []}, status=429)
        target = {"sampling_session_id": described.gateway.sampling_session_id}
        for clone in range(MAX_CLONES + 1):
            body = {"target": target | {"cloned_sampler_id": clone}, "timeout": 0}
            status = 200 if clone < MAX_CLONES else 422
            await described.ask(POLL_MANY, body, status=status)
