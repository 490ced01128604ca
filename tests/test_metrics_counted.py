"""What each of the rarer families counts, made to happen."""

import asyncio
import platform

import pytest

from asgi_gateway.drain import SOURCE
from asgi_gateway.errors import Unready
from asgi_gateway.gauges import VERSION
from asgi_gateway.metrics import OTHER, Counts, Metrics
from tests.support.clock import ManualClock
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.held import Held, metric
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import until


async def scraped(gateway: Driven) -> bytes:
    return (await gateway.client.get("/metrics")).body


async def counted(gateway: Driven, name: str, **labels: str) -> float:
    return metric(await scraped(gateway), name, **labels)


# --- the text ------------------------------------------------------------------------------------


def test_a_name_that_was_not_foreseen_makes_no_series() -> None:
    counts = Counts("ok")
    before = [name for name, _ in counts.shown()]
    counts["ok"] += 1
    counts["what is this"] += 2
    assert counts.shown() == [("ok", 1), (OTHER, 2)]
    assert before == ["ok", OTHER]


def test_values_of_labels_are_escaped() -> None:
    metrics = Metrics()
    metrics.labelled("odd", "gauge", "Odd.", ("a", "b"), lambda: [(('x"y', "c\\d\ne"), 1)])
    assert b'asgi_gateway_odd{a="x\\"y",b="c\\\\d\\ne"} 1\n' in metrics.render()


def test_numbers_without_an_end_are_as_prometheus_writes_them() -> None:
    metrics = Metrics()
    for name, number in (("up", float("inf")), ("down", float("-inf")), ("none", float("nan"))):
        metrics.gauge(name, "Text.", lambda number=number: number)  # type: ignore[misc]
    text = metrics.render()
    assert b"asgi_gateway_up +Inf\n" in text
    assert b"asgi_gateway_down -Inf\n" in text
    assert b"asgi_gateway_none NaN\n" in text


def test_a_family_is_registered_once() -> None:
    metrics = Metrics()
    with pytest.raises(ValueError, match="asgi_gateway_bugs_total is registered already"):
        metrics.counter("bugs_total", "Again.", lambda: 0)


async def test_every_family_has_its_text(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        text = (await scraped(gateway)).decode()
        families = gateway.gateway.metrics.families
        for family in families:
            assert f"# HELP {family.name} {family.text}\n# TYPE {family.name} " in text
            assert family.text.endswith(".")
        assert text.count("# HELP ") == text.count("# TYPE ") == len(families)


async def test_the_build_is_told(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        labels = {"version": VERSION, "python": platform.python_version()}
        assert await counted(gateway, "build_info", **labels) == 1


# --- samples -------------------------------------------------------------------------------------


class Going(ManualClock):
    """A millisecond later at each look."""

    def now(self) -> float:
        self.advance(0.001)
        return super().now()


async def test_own_time_is_of_results_and_without_the_upstreams(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with driven(upstream.url) as gateway:
        clock = Going()
        gateway.gateway._sampling._runs._clock = clock
        await gateway.handshake()
        ids = [(await gateway.submit(n)).json()["request_id"] for n in range(3)]
        await held.running(3)
        await gateway.client.post("/api/v1/cancel_future", {"request_id": ids[2]}, SDK_HEADERS)
        clock.advance(1000)
        held.release()
        for request_id in ids[:2]:
            assert (await gateway.poll(request_id).response()).status == 200
        text = await scraped(gateway)
        assert metric(text, "overhead_seconds_count") == 2
        assert metric(text, "overhead_seconds_sum") == pytest.approx(0.002)


async def test_results_that_nobody_fetched_are_counted(upstream: FakeUpstream) -> None:
    async with driven(upstream.url, store__completed_ttl_s=100) as gateway:
        await gateway.handshake()
        ids = [(await gateway.submit(n)).json()["request_id"] for n in range(2)]
        store = gateway.gateway._store
        await until(lambda: store.undelivered == 2)
        assert (await gateway.poll(ids[0]).response()).status == 200
        await gateway.advance(101)
        assert await counted(gateway, "results_unfetched_total") == 1
        await gateway.advance(1000)
        assert await counted(gateway, "samples_held") == 0
        assert await counted(gateway, "results_unfetched_total") == 1


async def test_what_was_cancelled_is_missed_by_nobody(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with driven(upstream.url, store__completed_ttl_s=100) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        await held.running()
        body = {"request_id": request_id}
        await gateway.client.post("/api/v1/cancel_future", body, SDK_HEADERS)
        await gateway.advance(101)
        assert await counted(gateway, "samples_held") == 0
        assert await counted(gateway, "results_unfetched_total") == 0


async def test_lost_races_are_counted_by_what_was_late(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        assert (await gateway.poll(request_id).response()).status == 200
        for _ in range(2):
            body = {"request_id": request_id}
            await gateway.client.post("/api/v1/cancel_future", body, SDK_HEADERS)
        text = await scraped(gateway)
        assert metric(text, "late_events_total", event="cancel") == 2
        assert metric(text, "late_events_total", event="succeed") == 0


# --- readiness and refusals ----------------------------------------------------------------------


async def test_readiness_is_told_with_its_reasons(upstream: FakeUpstream) -> None:
    async def reasons() -> set[str]:
        text = await scraped(gateway)
        known = ("descriptors", "drain", "memory", "upstreams", "models")
        found = {reason for reason in known if metric(text, "not_ready", reason=reason)}
        ready = (await gateway.client.get("/readyz")).status == 200
        assert metric(text, "ready") == ready == (not found)
        return found

    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        assert await reasons() == set()
        assert await counted(gateway, "upstreams_available") == 1
        gateway.gateway.drain_upstream(upstream.url)
        assert await reasons() == {"upstreams"}
        assert await counted(gateway, "upstreams_available") == 0
        gateway.gateway._admission.object(SOURCE, "draining", Unready)
        assert await reasons() == {"upstreams", "drain"}


async def test_not_ready_before_an_upstream_has_listed_its_models() -> None:
    async with driven("http://127.0.0.1:9") as gateway:
        text = await scraped(gateway)
        assert (metric(text, "ready"), metric(text, "not_ready", reason="models")) == (0, 1)


async def test_refusals_are_counted_by_what_refuses(upstream: FakeUpstream) -> None:
    Held(upstream)
    async with driven(upstream.url, store__max_bytes=60_000) as gateway:
        await gateway.handshake()

        async def refused(status: int, **fields: object) -> None:
            assert (await gateway.submit(len(seen), **fields)).status == status
            seen.append(status)

        seen: list[int] = []
        gateway.gateway._store.budget.charged_bytes += 60_000
        await refused(429)
        gateway.gateway._store.budget.charged_bytes -= 60_000
        gateway.gateway.drain_upstream(upstream.url)
        await refused(429)
        gateway.gateway.drain_upstream(upstream.url, draining=False)
        gateway.gateway._admission.object(SOURCE, "draining", Unready)
        await refused(503)
        text = await scraped(gateway)
        for reason in ("bytes", "upstreams", "drain"):
            assert metric(text, "admission_rejected_total", reason=reason) == 1, reason
        assert metric(text, "admission_rejected_total", reason=OTHER) == 0
        assert metric(text, "charged_bytes_limit") == 60_000


# --- upstreams -----------------------------------------------------------------------------------

ANSWERS = {
    "ok": answer(200, completion([1, 2], [-1.0, -2.0])),
    "rejected": answer(400, {"error": {"message": "no"}}),
    "unreadable": answer(200, b"{}"),
    "missing_logprobs": answer(200, completion([1, 2], [-1.0, None])),
    "interrupted": Raw(b"", "reset"),
    "aborted": answer(200, completion([1], [-1.0], finish_reason="abort")),
}


async def test_requests_are_counted_by_upstream_and_outcome(upstream: FakeUpstream) -> None:
    left = list(ANSWERS.values())

    async def script(_: Request) -> Raw:
        return left.pop(0)

    upstream.script = script
    other = FakeUpstream()
    async with (
        other.running(),
        driven(upstream.url, upstream__urls=[upstream.url, other.url]) as gateway,
    ):
        await gateway.handshake()
        gateway.gateway.drain_upstream(other.url)
        for seq_id in range(len(ANSWERS)):
            request_id = (await gateway.submit(seq_id)).json()["request_id"]
            await gateway.poll(request_id).response()
        text = await scraped(gateway)
        mine, others = (url.removeprefix("http://") for url in (upstream.url, other.url))
        for code in ANSWERS:
            assert metric(text, "upstream_requests_total", upstream=mine, code=code) == 1, code
            assert metric(text, "upstream_requests_total", upstream=others, code=code) == 0
        for code in (OTHER, "bug", "cancelled"):
            assert metric(text, "upstream_requests_total", upstream=mine, code=code) == 0


async def test_polls_parked_are_none_after_their_session(upstream: FakeUpstream) -> None:
    """The count is kept and not made from the polls."""
    Held(upstream)
    async with driven(upstream.url) as gateway:
        sampler = await gateway.handshake()
        body = {
            "target": {"type": "sampling_session", "sampling_session_id": sampler},
            "prev_cursor": 0,
        }
        polls = [
            gateway.client.start("POST", "/api/v1/retrieve_futures", body, SDK_HEADERS)
            for _ in range(3)
        ]
        store = gateway.gateway._store
        await until(lambda: store.targets.parked == 3)
        polls[0].hang_up()
        await until(lambda: store.targets.parked == 2)
        store.targets.forget(sampler)
        assert store.targets.parked == 0
        await gateway.advance(31)
        await asyncio.gather(*(poll.response() for poll in polls[1:]))
        assert await counted(gateway, "polls_inflight") == 0
