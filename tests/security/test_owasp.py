"""What no other test covers of the table in docs/security.md, and that the table is true."""

import logging
import re
from typing import Any

import pytest

from asgi_gateway.asgi import Call, Reply
from tests.support.asgi_client import Response
from tests.support.described import described_gateway
from tests.support.gateway import Driven, driven
from tests.support.processes import ROOT
from tests.support.upstream import FakeUpstream, Raw, answer, completion
from tests.support.waiting import until

API = "/api/v1"
PAGE = ROOT / "docs" / "security.md"
# All that a sample's body may hold upstream.
SENT = {
    *("prompt", "model", "n", "max_tokens", "temperature", "top_p", "top_k", "logprobs", "seed"),
    *("cache_salt", "return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs", "stop"),
    *("stop_token_ids", "ignore_eos", "skip_special_tokens"),
}
FOREIGN: dict[str, Any] = {
    "model": "another",
    "n": 9,
    "stream": True,
    "best_of": 5,
    "echo": True,
    "logit_bias": {"1": 100},
    "user": "canary-user",
    "suffix": "canary-suffix",
    "cache_salt": "canary-salt",
    "priority": -100,
    "guided_json": {},
    "structured_outputs": {"json": {}},
    "response_format": {"type": "json_object"},
    "kv_transfer_params": {"remote_host": "canary-host"},
    "vllm_xargs": {"x": 1},
    "lora_request": "canary-lora",
    "request_id": "canary-id",
    "ignore_eos": True,
    "min_tokens": 5,
    "bad_words": ["x"],
    "logprobs": 20,
    "max_tokens": 1,
    "__proto__": {"x": 1},
    "": 1,
}


def test_the_table_names_tests_that_are_there() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| API")]
    assert len(rows) >= 8
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named or row.startswith("| API6")
        for path, name in named:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (
                f"{path} has no {name}"
            )


# --- API3 ----------------------------------------------------------------------------------------


async def test_no_unknown_field_reaches_the_upstream(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        plain = await gateway.submit(0)
        everywhere = await gateway.submit(
            1,
            prompt={
                "chunks": [{"type": "encoded_text", "tokens": [1, 2, 3], **FOREIGN}],
                **FOREIGN,
            },
            sampling_params={**FOREIGN, "max_tokens": 2},
            **{name: value for name, value in FOREIGN.items() if name != "type"},
        )
        assert plain.status == everywhere.status == 200
        await until(lambda: len(upstream.requests) == 2)
        first, second = (request.json() for request in upstream.requests)
        assert first == second
        assert set(first) <= SENT
        assert b"canary" not in upstream.requests[1].body


@pytest.mark.usefixtures("each_transport")
async def test_no_answer_tells_of_what_is_inside(upstream: FakeUpstream) -> None:
    """Neither where the upstream is, nor what our code is made of."""
    port = upstream.url.rpartition(":")[2]
    outcomes = [
        answer(500, {"error": {"message": "engine"}}),
        answer(502, b"x"),
        answer(401, b"no"),
        answer(200, b"<html>"),
        answer(200, {"choices": [{"index": 0, "finish_reason": "stop"}]}),
        answer(200, completion([1], None)),
        Raw(b"not http at all", "close"),
        Raw(b"", "reset"),
    ]
    async with driven(upstream.url, upstream__breaker_failures=0) as gateway:
        await gateway.handshake()
        told: list[Response] = []
        for number, outcome in enumerate(outcomes):

            async def script(_: object, outcome: Raw = outcome) -> Raw:
                return outcome

            upstream.script = script
            promise = await gateway.submit(number)
            told += [promise, await _outcome(gateway, promise.json()["request_id"])]
        await upstream.stop()
        promise = await gateway.submit(100)
        waiting = gateway.poll(promise.json()["request_id"])
        await until(lambda: bool(gateway.gateway._metrics.retries["unavailable"]))
        await gateway.advance(31)
        told.append(await waiting.response())
        for path in ("readyz", "livez", "openapi.json", "nothing", "api/v1/healthz"):
            told.append(await gateway.client.get(f"/{path}"))
        assert {200, 404, 408, 410} <= {one.status for one in told}
        for one in told:
            for inside in (port, "127.0.0.1", "Traceback", ".py", "Errno", " object at 0x"):
                assert inside.encode() not in one.body, one.body
            assert not {b"server", b"x-powered-by"} & set(one.headers)


async def _outcome(gateway: Driven, request_id: str) -> Response:
    poll = gateway.poll(request_id)
    for _ in range(1000):
        if poll.answered:
            break
        await until(
            lambda: poll.answered or bool(gateway.gateway._sampling._dispatch._repeats.later)
        )
        if not poll.answered:
            await gateway.advance(1.5)
    return await poll.response()


# --- API8 ----------------------------------------------------------------------------------------

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get")


async def test_every_route_has_one_method_and_no_cors(upstream: FakeUpstream) -> None:
    async with described_gateway(upstream.url) as described:
        client = described.gateway.client
        headers = {"Origin": "http://evil.invalid", "Access-Control-Request-Method": "POST"}
        for path, methods in described.document["paths"].items():
            (right,) = methods
            for method in METHODS:
                reply = await client.start(
                    method, path.replace("{id}", "x"), b"", headers
                ).response()
                if method == right.upper():
                    assert reply.status != 405
                else:
                    assert reply.status == 405, (method, path)
                    assert reply.headers[b"allow"] == right.upper().encode()
                assert not [name for name in reply.headers if name.startswith(b"access-control")]
                assert b"set-cookie" not in reply.headers
                kind = reply.headers[b"content-type"].partition(b";")[0]
                assert kind in (b"application/json", b"text/plain", b"text/html"), (method, path)


async def test_a_bug_says_nothing_and_writes_one_line_about_the_path(
    upstream: FakeUpstream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path may hold anything, and a line of the log must not be a client's to write."""
    async with driven(upstream.url) as gateway:
        match = gateway.gateway._table.find(f"{API}/samplers/x")
        assert match is not None

        async def broken(_: Call) -> Reply:
            raise RuntimeError("canary-secret")

        route = type(match.route)("GET", broken, 1000, "sample")
        monkeypatch.setitem(gateway.gateway._table._with_ids, f"{API}/samplers/*", route)
        path = f"{API}/samplers/x\r\nWARNING forged\x1b[2J\u2028y"
        reply = await gateway.client.get(path)
        assert (reply.status, reply.json()) == (
            500,
            {"detail": "an internal error of the gateway"},
        )
        (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert record.getMessage().isprintable(), record.getMessage()
        assert "forged" in record.getMessage()


# --- API9 ----------------------------------------------------------------------------------------


async def test_every_route_that_is_ours_is_in_the_docs(upstream: FakeUpstream) -> None:
    listed = set(re.findall(r"^\| `([A-Z]+)` \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE))
    async with described_gateway(upstream.url) as described:
        paths = described.document["paths"]
        assert listed == {(method.upper(), path) for path in paths for method in paths[path]}


async def test_telemetry_is_dropped(
    upstream: FakeUpstream, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    state = tmp_path / "state"
    samples = tmp_path / "samples.jsonl"
    async with driven(upstream.url, state__dir=str(state), log__samples=str(samples)) as gateway:
        body = b'{"events":[{"canary":"canary-7d1"}]}'
        assert (await gateway.client.post(f"{API}/telemetry", body)).status == 200
        large = await gateway.client.post(f"{API}/telemetry", b"x" * ((256 << 10) + 1))
        assert large.status == 413
        shown = (await gateway.client.get("/metrics")).body
        await gateway.advance(1)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"canary-7d1" not in written + shown + caplog.text.encode()
    assert not upstream.requests
