"""Spans of samples at a real collector: what they say, whose children they are, and that one which
is away disturbs nobody."""

import asyncio
import functools
import logging
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from asgi_gateway import Gateway
from asgi_gateway.codec import SampleArrays, Sequence, StopReason
from asgi_gateway.codec.counted import sampled_tokens
from asgi_gateway.codec.encode import encode
from asgi_gateway.settings import SettingsError
from asgi_gateway.store.states import State
from tests.support.collector import Collector
from tests.support.gateway import SDK_HEADERS, driven, settings
from tests.support.held import metric
from tests.support.processes import free_port, process
from tests.support.upstream import FakeUpstream, Raw, Request, answer, in_order
from tests.support.waiting import until
from tests.tracing.test_context import GOOD, PARENT, SPAN_ID, TRACE_ID, sampled, submit

SERVER, CLIENT = 2, 3
ERROR = 2
TRACED = ("traceparent", PARENT)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector().running() as running:
        yield running


def tracing(collector: Collector, **flags: Any) -> dict[str, Any]:
    return {
        "tracing__otlp": True,
        "tracing__endpoint": f"{collector.url}/v1/traces",
        "tracing__share": 0.0,
        **flags,
    }


def parent_of(request: Request) -> str:
    return request.headers["traceparent"]


# --- what they say --------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_transport")
async def test_a_sample_and_its_try_below_the_clients_span(
    upstream: FakeUpstream, collector: Collector
) -> None:
    release = asyncio.Event()

    async def script(_: Request) -> Raw:
        await release.wait()
        return GOOD

    upstream.script = script
    async with driven(upstream.url, **tracing(collector)) as gateway:
        await gateway.handshake()
        promise = await submit(gateway, 0, TRACED, ("tracestate", "a=1"))
        request_id = promise.json()["request_id"]
        await until(lambda: bool(upstream.requests))
        gateway.clock.advance(2.5)
        release.set()
        assert (await gateway.poll(request_id).response()).status == 200
        text = gateway.gateway.metrics.render()
        assert metric(text, "traces_dropped_total") == 0
        session = gateway.sampling_session_id
    of_sample, of_try = collector.spans()
    epoch_ns = of_sample["start"]
    assert of_sample.pop("end") - epoch_ns == 2_500_000_000
    assert of_sample == {
        "name": "sample",
        "kind": SERVER,
        "trace_id": TRACE_ID,
        "span_id": of_sample["span_id"],
        "parent": SPAN_ID,
        "state": "a=1",
        "start": epoch_ns,
        "status": 0,
        "attributes": {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": "stand-in",
            "gen_ai.usage.input_tokens": "3",
            "gen_ai.usage.output_tokens": "2",
            "sample.outcome": "succeeded",
            "sample.request_id": request_id,
            "sample.session_id": session,
            "sample.attempts": "1",
            "sample.upstream": upstream.url,
        },
    }
    assert of_try == {
        "name": "POST /v1/completions",
        "kind": CLIENT,
        "trace_id": TRACE_ID,
        "span_id": of_try["span_id"],
        "parent": of_sample["span_id"],
        "state": "a=1",
        "start": epoch_ns,
        "end": epoch_ns + 2_500_000_000,
        "status": 0,
        "attributes": {
            "http.request.method": "POST",
            "server.address": upstream.url,
            "sample.attempt": "1",
        },
    }
    (request,) = upstream.requests
    assert parent_of(request) == f"00-{TRACE_ID}-{of_try['span_id']}-01"
    assert request.headers["tracestate"] == "a=1"
    (sent,) = collector.requests()
    resource = {
        one.key: one.value.string_value for one in sent.resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "asgi-gateway"
    assert collector.paths == ["/v1/traces"]


async def test_every_try_is_a_span(upstream: FakeUpstream, collector: Collector) -> None:
    """Two that failed and one that did not, each with the time that it took."""
    failed = answer(503, {"error": {"message": "busy"}}, headers={"retry-after": "3"})
    upstream.script = in_order(failed, failed, GOOD)
    async with driven(upstream.url, **tracing(collector)) as gateway:
        await gateway.handshake()
        request_id = (await submit(gateway, 0, TRACED)).json()["request_id"]
        store = gateway.gateway._store
        for count in (1, 2):
            await until(
                functools.partial(
                    lambda n: len(upstream.requests) == n and store.counts[State.QUEUED] == 1, count
                )
            )
            await gateway.advance(4)
        assert (await gateway.poll(request_id).response()).status == 200
    of_sample, *tries = collector.spans()
    assert of_sample["attributes"]["sample.attempts"] == "3"
    assert [one["parent"] for one in tries] == [of_sample["span_id"]] * 3
    assert [one["status"] for one in tries] == [ERROR, ERROR, 0]
    assert [one["attributes"]["sample.attempt"] for one in tries] == ["1", "2", "3"]
    assert [parent_of(request) for request in upstream.requests] == [
        f"00-{TRACE_ID}-{one['span_id']}-01" for one in tries
    ]
    assert len({one["span_id"] for one in (of_sample, *tries)}) == 4
    starts = [(one["start"] - of_sample["start"]) / 1e9 for one in tries]
    assert starts == [0.0, 4.0, 8.0]


async def test_what_failed_and_what_was_never_sent(
    upstream: FakeUpstream, collector: Collector
) -> None:
    never = asyncio.Event()

    async def script(_: Request) -> Raw:
        if len(upstream.requests) == 1:
            return answer(400, {"error": {"message": "canary 101,103"}})
        await never.wait()
        return Raw()

    upstream.script = script
    flags = tracing(collector, upstream__max_connections=1)
    async with driven(upstream.url, **flags) as gateway:
        await gateway.handshake()
        first = (await submit(gateway, 0, TRACED)).json()["request_id"]
        assert (await gateway.poll(first).response()).json()["category"] == "user"
        ids = [(await submit(gateway, n, TRACED)).json()["request_id"] for n in (1, 2)]
        await until(lambda: len(upstream.requests) == 2)
        body = {"request_id": ids[1]}
        await gateway.client.post("/api/v1/cancel_future", body, SDK_HEADERS)
    samples = [one for one in collector.spans() if one["kind"] == SERVER]
    assert [one["attributes"]["sample.outcome"] for one in samples] == [
        "failed",
        "cancelled",
        "gone",
    ]
    assert samples[0]["attributes"]["error.type"] == "user"
    assert [one["status"] for one in samples] == [ERROR, 0, ERROR]
    tries = [one for one in collector.spans() if one["kind"] == CLIENT]
    assert [one["parent"] for one in tries] == [samples[0]["span_id"], samples[2]["span_id"]]
    assert b"canary" not in b"".join(collector.bodies)


async def test_whose_samples_have_spans(upstream: FakeUpstream, collector: Collector) -> None:
    """The client's flag decides; without one the share does."""
    unsampled = ("traceparent", PARENT[:-2] + "00")
    async with driven(upstream.url, **tracing(collector)) as gateway:
        await gateway.handshake()
        await sampled(gateway, 0, unsampled)
        await sampled(gateway, 1)
    assert [request.headers.get("traceparent") for request in upstream.requests] == [
        unsampled[1],
        None,
    ]
    assert collector.spans() == []
    async with driven(upstream.url, **tracing(collector, tracing__share=1.0)) as gateway:
        await gateway.handshake()
        await sampled(gateway, 0, unsampled)
        await sampled(gateway, 1)
        await sampled(gateway, 2)
    assert len({one["trace_id"] for one in collector.spans()}) == 2
    roots = [one for one in collector.spans() if one["kind"] == SERVER]
    assert [one["parent"] for one in roots] == ["", ""]
    assert [parent_of(request)[3:35] for request in upstream.requests[-2:]] == [
        one["trace_id"] for one in roots
    ]


async def test_the_share(upstream: FakeUpstream, collector: Collector) -> None:
    async with driven(upstream.url, **tracing(collector, tracing__share=0.25)) as gateway:
        await gateway.handshake()
        for number in range(200):
            await sampled(gateway, number)
    roots = [one for one in collector.spans() if one["kind"] == SERVER]
    assert 20 < len(roots) < 85  # five standard deviations


async def test_the_variables_of_opentelemetry(
    upstream: FakeUpstream, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{collector.url}/base")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=t1")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "sampling")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment=a")
    async with driven(upstream.url, tracing__otlp=True) as gateway:
        await gateway.handshake()
        await sampled(gateway, 0, TRACED)
    assert collector.paths == ["/base/v1/traces"]
    assert collector.headers[0]["x-tenant"] == "t1"
    (sent,) = collector.requests()
    resource = {
        one.key: one.value.string_value for one in sent.resource_spans[0].resource.attributes
    }
    assert (resource["service.name"], resource["deployment"]) == ("sampling", "a")


# --- it disturbs nobody ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["refuses", "says 503", "says nothing"])
async def test_a_collector_that_is_away(
    upstream: FakeUpstream, collector: Collector, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples go on at once, what is not sent is counted, and the end does not wait for it."""
    caplog.set_level(logging.ERROR)
    flags = tracing(collector)
    deaf = None
    if how == "refuses":
        flags["tracing__endpoint"] = f"http://127.0.0.1:{free_port()}/v1/traces"
    elif how == "says 503":
        collector.status = 503
    else:
        deaf = socket.create_server(("127.0.0.1", 0))
        flags["tracing__endpoint"] = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
    async with driven(upstream.url, **flags) as gateway:
        await gateway.handshake()
        began = time.monotonic()
        for number in range(20):
            await sampled(gateway, number, TRACED)
        assert time.monotonic() - began < 5
        spans = gateway.gateway._outputs._spans
        assert spans is not None
        for _ in range(10):
            gateway.gateway.tick()
        await until(lambda: not spans.queue)
        for number in range(20, 40):
            await sampled(gateway, number, TRACED)
        closing = time.monotonic()
    assert time.monotonic() - closing < 4
    assert spans.written == 0
    assert spans.dropped >= 20
    assert collector.bodies == []
    if deaf is not None:
        deaf.close()


async def test_what_does_not_fit_the_queue_is_dropped_and_counted(
    upstream: FakeUpstream, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asgi_gateway.tracing.starting.MAX_QUEUED", 5)
    async with driven(upstream.url, **tracing(collector)) as gateway:
        await gateway.handshake()
        spans = gateway.gateway._outputs._spans
        assert spans is not None
        monkeypatch.setattr(spans, "tick", lambda: None)
        for number in range(8):
            await sampled(gateway, number, TRACED)
        text = gateway.gateway.metrics.render()
        assert metric(text, "traces_dropped_total") == 3
    assert len([one for one in collector.spans() if one["kind"] == SERVER]) == 5


async def test_nothing_is_held_after_a_sample(upstream: FakeUpstream, collector: Collector) -> None:
    async with driven(upstream.url, **tracing(collector, tracing__share=1.0)) as gateway:
        await gateway.handshake()
        for number in range(5):
            await sampled(gateway, number)
        assert not gateway.gateway._sampling._traces.held


# --- off, or not there ----------------------------------------------------------------------------


async def test_off_makes_no_spans(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        assert gateway.gateway._outputs._spans is None
        assert b"traces_" not in gateway.gateway.metrics.render()


def test_off_imports_nothing() -> None:
    program = """
import sys
from asgi_gateway import Gateway
from asgi_gateway.configuration import load
flags = {"upstream.urls": ["http://127.0.0.1:9"], "tracing.share": 1.0}
Gateway(load(flags, environ={}).settings)
print([name for name in sys.modules if name.startswith(("opentelemetry", "requests"))])
"""
    with process([sys.executable, "-c", program]) as ran:
        assert ran.wait() == 0
        assert ran.stdout == "[]\n", ran.story()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from asgi_gateway.__main__ import main
sys.exit(main())
"""
    for command in ("check-config", "serve"):
        argv = [sys.executable, "-c", program, command, "--upstream", "http://h:1"]
        with process(argv, {"ASGI_GATEWAY_TRACING__OTLP": "true"}) as ran:
            assert ran.wait() == 2
            (line,) = ran.stderr.splitlines()
            assert line.startswith("asgi-gateway: tracing.otlp: OpenTelemetry is not installed")
            assert "asgi-gateway[otel]" in line


def test_an_endpoint_that_is_none() -> None:
    flags = {"tracing__otlp": True, "tracing__endpoint": "user:canary@h/x"}
    with pytest.raises(
        SettingsError, match=r"tracing\.endpoint: .* must start with http"
    ) as raised:
        Gateway(settings("http://127.0.0.1:9", **flags))
    assert "canary" not in str(raised.value)


# --- counted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[], [0], [1], [16], [40], [5000], [3, 0, 200, 20_000]])
@pytest.mark.parametrize("with_prompt", [False, True])
def test_tokens_are_counted_from_the_wire(lengths: list[int], with_prompt: bool) -> None:
    sequences = [
        Sequence(
            stop_reason=StopReason(n % 2),
            held_tokens=np.arange(n, dtype=np.int32),
            held_logprobs=np.zeros(n, np.float32),
        )
        for n in lengths
    ]
    prompt = np.zeros(300, np.float32) if with_prompt else None
    arrays = SampleArrays(
        sequences=tuple(sequences),
        prompt_logprobs=prompt,
        prompt_cache_hit_tokens=1 << 20 if with_prompt else 0,
    )
    assert sampled_tokens(encode(arrays)) == sum(lengths)


async def test_the_share_changes_while_it_runs(
    upstream: FakeUpstream, collector: Collector
) -> None:
    async with driven(upstream.url, **tracing(collector)) as gateway:
        await gateway.handshake()
        await sampled(gateway, 0)
        changed = settings(upstream.url, **tracing(collector, tracing__share=1.0))
        assert await gateway.gateway.reload(changed) == ("tracing.share",)
        await sampled(gateway, 1)
    assert len([one for one in collector.spans() if one["kind"] == SERVER]) == 1


async def test_off_stays_off_whatever_the_share(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        await gateway.gateway.reload(settings(upstream.url, tracing__share=1.0))
        await sampled(gateway, 0)
    assert "traceparent" not in upstream.requests[0].headers
