"""Trace context from the client's request to the upstream's, on sockets: what is sent on, and what
is not."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from asgi_gateway.store.states import State
from asgi_gateway.tracing.context import MAX_TRACESTATE, Trace, carried
from tests.support.asgi_client import Response
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.upstream import FakeUpstream, Raw, answer, completion, in_order
from tests.support.waiting import until
from tests.training.test_behind import behind

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
GOOD = answer(200, completion([11, 12], [-1.0, -2.0]))
Headers = list[tuple[bytes, bytes]]


# --- the grammar ----------------------------------------------------------------------------------


def read(*parents: str, state: tuple[str, ...] = ()) -> Trace | None:
    headers: Headers = [(b"host", b"h")]
    headers += [(b"traceparent", one.encode("latin-1")) for one in parents]
    headers += [(b"tracestate", one.encode("latin-1")) for one in state]
    return carried(headers)


def test_a_valid_one_is_read() -> None:
    assert read(PARENT) == Trace(PARENT, "")
    assert read(f" {PARENT}\t", state=("a=1",)) == Trace(PARENT, "a=1")
    trace = read(PARENT)
    assert trace is not None
    assert (trace.trace_id, trace.parent_id, trace.is_sampled) == (TRACE_ID, SPAN_ID, True)
    for flags, sampled in (("00", False), ("02", False), ("03", True), ("ff", True)):
        trace = read(PARENT[:-2] + flags)
        assert trace is not None
        assert trace.is_sampled is sampled


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT[:-1],
        PARENT + "0",
        PARENT + "-extra",
        PARENT.upper(),
        PARENT.replace("4b", "4B"),
        "01" + PARENT[2:],
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID[:-1]}g-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-0g",
        f"00_{TRACE_ID}_{SPAN_ID}_01",
        f"{PARENT}\r\nX-Evil: 1",
        f"{PARENT}\n",
        f"{PARENT},{PARENT}",
        f"00-{TRACE_ID}-{SPAN_ID}-0\u00b9",
    ],
)
def test_an_invalid_one_is_dropped_and_its_state_with_it(parent: str) -> None:
    assert read(parent, state=("a=1",)) is None


def test_of_several_none_is_taken() -> None:
    assert read(PARENT, PARENT) is None
    assert read(PARENT, "nonsense") is None


def test_state_without_a_parent_is_nothing() -> None:
    assert read(state=("a=1",)) is None


@pytest.mark.parametrize(
    ("state", "sent"),
    [
        (("a=1", "b=2,c=3"), "a=1,b=2,c=3"),
        (("a=" + "x" * (MAX_TRACESTATE - 2),), "a=" + "x" * (MAX_TRACESTATE - 2)),
        (("a=" + "x" * (MAX_TRACESTATE - 1),), ""),
        (("a=" + "x" * 300, "b=" + "x" * 300), ""),
        (("a=1\r\nX-Evil: 1",), ""),
        (("a=1\n",), ""),
        (("a=\x00",), ""),
        (("a=\u00e9",), ""),
        (("",), ""),
        (("  ",), ""),
    ],
)
def test_state_is_bounded_and_the_parent_stays(state: tuple[str, ...], sent: str) -> None:
    assert read(PARENT, state=state) == Trace(PARENT, sent)


# --- on the way -----------------------------------------------------------------------------------


async def submit(gateway: Driven, seq_id: int, *more: tuple[str, str]) -> Response:
    """As `Driven.submit`, with more headers, which may be the same twice."""
    body: dict[str, Any] = {
        "sampling_session_id": gateway.sampling_session_id,
        "seq_id": seq_id,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 2},
    }
    headers = {**SDK_HEADERS, **dict(more)}
    promise = await gateway.client.post("/api/v1/asample", body, headers)
    assert promise.status == 200, promise.body
    return promise


async def sampled(gateway: Driven, seq_id: int, *more: tuple[str, str]) -> None:
    request_id = (await submit(gateway, seq_id, *more)).json()["request_id"]
    assert (await gateway.poll(request_id).response()).status == 200


def seen(upstream: FakeUpstream) -> list[tuple[str | None, str | None]]:
    """Both headers of every request that came."""
    return [
        (request.headers.get("traceparent"), request.headers.get("tracestate"))
        for request in upstream.requests
    ]


@pytest.mark.usefixtures("each_transport")
async def test_it_arrives_as_it_came_and_nothing_where_none_came(upstream: FakeUpstream) -> None:
    unsampled = PARENT[:-2] + "00"
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        await sampled(gateway, 0)
        await sampled(gateway, 1, ("traceparent", PARENT), ("tracestate", "a=1,b=2"))
        await sampled(gateway, 2, ("traceparent", unsampled))
        await sampled(gateway, 3, ("traceparent", PARENT.upper()), ("tracestate", "a=1"))
        await sampled(gateway, 4, ("tracestate", "a=1"))
        await sampled(gateway, 5)
        nothing = (None, None)
        assert seen(upstream) == [
            nothing,
            (PARENT, "a=1,b=2"),
            (unsampled, None),
            nothing,
            nothing,
            nothing,
        ]
        assert not gateway.gateway._sampling._traces.held


@pytest.mark.usefixtures("each_transport")
async def test_every_try_is_of_the_same_trace(upstream: FakeUpstream) -> None:
    """After an engine fault, and on a new connection where the idle one was closed."""
    stale = Raw(b"", "close")
    failed = answer(500, {"error": {"message": "engine"}})
    upstream.script = in_order(GOOD, stale, failed, GOOD)
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        await sampled(gateway, 0)
        traced = (("traceparent", PARENT), ("tracestate", "a=1"))
        request_id = (await submit(gateway, 1, *traced)).json()["request_id"]
        store = gateway.gateway._store
        await until(lambda: len(upstream.requests) == 3 and bool(store.counts[State.QUEUED]))
        assert gateway.gateway._metrics.retries["stale_connection"] == 1
        await gateway.advance(2)
        assert (await gateway.poll(request_id).response()).status == 200
        assert seen(upstream) == [(None, None)] + [(PARENT, "a=1")] * 3
        assert not gateway.gateway._sampling._traces.held


async def test_a_repeated_submit_keeps_the_first_trace(upstream: FakeUpstream) -> None:
    other = PARENT.replace("4bf9", "5bf9")
    async with driven(upstream.url, upstream__max_connections=1) as gateway:
        await gateway.handshake()
        first = await submit(gateway, 0, ("traceparent", PARENT))
        again = await submit(gateway, 0, ("traceparent", other))
        assert first.body == again.body
        assert (await gateway.poll(first.json()["request_id"]).response()).status == 200
        # Settled: its answer is there, and a trace that nobody asks for is not kept.
        await submit(gateway, 0, ("traceparent", other))
        assert not gateway.gateway._sampling._traces.held
    assert seen(upstream) == [(PARENT, None)]


async def test_a_sample_submitted_anew_after_a_410_has_its_new_trace(
    upstream: FakeUpstream,
) -> None:
    upstream.script = in_order(Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", "reset"), GOOD)
    other = PARENT.replace("4bf9", "5bf9")
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        promise = (await submit(gateway, 0, ("traceparent", PARENT))).json()
        await until(lambda: gateway.gateway._metrics.samples["gone"] == 1)
        assert not gateway.gateway._sampling._traces.held
        assert (await submit(gateway, 0, ("traceparent", other))).json() == promise
        assert (await gateway.poll(promise["request_id"]).response()).status == 200
    assert seen(upstream) == [(PARENT, None), (other, None)]


async def test_every_end_of_a_sample_lets_go_of_its_trace(upstream: FakeUpstream) -> None:
    """Waiting, cancelled, overdue, and those that a close interrupts."""
    upstream.script = in_order(Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", "keep"))
    traced = ("traceparent", PARENT)
    async with driven(
        upstream.url,
        upstream__max_connections=1,
        upstream__silent_s=10_000,
        session__timeout_s=10_000,
    ) as gateway:
        await gateway.handshake()
        held = gateway.gateway._sampling._traces.held
        ids = [(await submit(gateway, n, traced)).json()["request_id"] for n in range(5)]
        assert set(held) == set(ids)
        body = {"request_id": ids[1]}
        await gateway.client.post("/api/v1/cancel_future", body, SDK_HEADERS)
        assert set(held) == set(ids) - {ids[1]}
        await gateway.advance(3000)
        await until(lambda: ids[0] not in held)
        assert held
    assert not held


async def test_the_sample_log_names_the_trace(upstream: FakeUpstream, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    async with driven(upstream.url, log__samples=str(path)) as gateway:
        await gateway.handshake()
        await sampled(gateway, 0, ("traceparent", PARENT))
        await sampled(gateway, 1)
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert [line.get("trace_id") for line in lines] == [TRACE_ID, None]


# --- to a trainer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["url", "embedded"])
async def test_calls_that_a_trainer_answers_keep_their_trace(
    upstream: FakeUpstream, how: str
) -> None:
    """Those that pass through, and those that the gateway makes in the client's name."""
    traced = {**SDK_HEADERS, "traceparent": PARENT, "tracestate": "a=1"}
    async with behind(upstream, how) as both:
        await both.gateway.handshake()
        body = {"session_id": both.gateway.session_id, "base_model": "stand-in", "model_seq_id": 0}
        client = both.gateway.client
        assert (await client.post("/api/v1/create_session", {"tags": []}, traced)).status == 200
        assert (await client.post("/api/v1/create_model", body, traced)).status == 200
        for path in ("create_session", "create_model"):
            told = [
                dict(map(tuple, one["headers"]))
                for one in both.trainer.seen.requests
                if one["target"] == f"/api/v1/{path}"
            ][-1]
            lower = {name.lower(): value for name, value in told.items()}
            assert (lower["traceparent"], lower["tracestate"]) == (PARENT, "a=1"), path
