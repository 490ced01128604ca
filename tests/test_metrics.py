"""Metrics say where samples are, so that a stalled middle is obvious from one scrape."""

import asyncio
import os
import resource
import time
from pathlib import Path

import pytest

from asgi_gateway.metrics import Metrics
from asgi_gateway.store.states import State
from tests.support.asgi_client import turns
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.held import Held, metric
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import until


async def scraped(gateway: Driven) -> bytes:
    return (await gateway.client.get("/metrics")).body


async def test_stages_say_where_samples_are(upstream: FakeUpstream) -> None:
    release = asyncio.Event()

    async def held(_: Request) -> Raw:
        await release.wait()
        return answer(200, completion([1, 2], [-1.0, -2.0]))

    upstream.script = held
    async with driven(upstream.url, upstream__max_connections=1) as gateway:
        await gateway.handshake()
        ids = [(await gateway.submit(n)).json()["request_id"] for n in range(3)]
        await turns()
        text = await scraped(gateway)
        assert metric(text, "samples_running") == 1
        assert metric(text, "samples_queued") == 2
        gateway.clock.advance(30)
        release.set()
        for request_id in ids[:2]:
            assert (await gateway.poll(request_id).response()).status == 200
        store = gateway.gateway._store
        await until(lambda: store.undelivered == 1)
        gateway.clock.advance(7)
        assert (await gateway.poll(ids[2]).response()).status == 200
        text = await scraped(gateway)
        assert metric(text, "stage_seconds_sum", stage="queued") == 60
        assert metric(text, "stage_seconds_sum", stage="upstream") == 30
        assert metric(text, "stage_seconds_sum", stage="deliver") == 7
        assert metric(text, "stage_seconds_count", stage="deliver") == 3
        assert metric(text, "samples_undelivered") == 0


class OneFault:
    """The first request waits for `fail` and answers a JSON 500, the next wait for `succeed`."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self.fail, self.succeed = asyncio.Event(), asyncio.Event()
        self._first = True
        upstream.script = self._script

    async def _script(self, _: Request) -> Raw:
        if self._first:
            self._first = False
            await self.fail.wait()
            return answer(500, {"error": {"message": "engine"}})
        await self.succeed.wait()
        return answer(200, completion([1, 2], [-1.0, -2.0]))


async def stages(gateway: Driven) -> dict[str, tuple[float, float]]:
    """Stage -> seconds and samples."""
    text = await scraped(gateway)
    return {
        stage: (
            metric(text, "stage_seconds_sum", stage=stage),
            metric(text, "stage_seconds_count", stage=stage),
        )
        for stage in ("queued", "upstream", "deliver")
    }


async def test_a_sample_that_is_tried_again_counts_once_in_each_stage(
    upstream: FakeUpstream,
) -> None:
    fault = OneFault(upstream)
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        await until(lambda: upstream.requests)
        gateway.clock.advance(10)
        fault.fail.set()
        store = gateway.gateway._store
        await until(lambda: store.counts[State.QUEUED])
        assert await stages(gateway) == {"queued": (0, 0), "upstream": (0, 0), "deliver": (0, 0)}
        await gateway.advance(4)
        await until(lambda: len(upstream.requests) == 2)
        gateway.clock.advance(20)
        fault.succeed.set()
        assert (await gateway.poll(request_id).response()).status == 200
        assert await stages(gateway) == {"queued": (4, 1), "upstream": (30, 1), "deliver": (0, 1)}


async def test_time_in_line_is_not_the_upstreams(upstream: FakeUpstream) -> None:
    """Nor is a sample counted there that never came to it."""
    fault = OneFault(upstream)
    async with driven(upstream.url, upstream__max_connections=1) as gateway:
        await gateway.handshake()
        tried = (await gateway.submit(0)).json()["request_id"]
        await until(lambda: upstream.requests)
        gateway.clock.advance(10)
        fault.fail.set()
        store = gateway.gateway._store
        await until(lambda: store.counts[State.QUEUED])
        running = (await gateway.submit(1)).json()["request_id"]
        waiting = (await gateway.submit(2)).json()["request_id"]
        await until(lambda: len(upstream.requests) == 2)
        await gateway.advance(0.5)
        for request_id in (tried, waiting):
            body = {"request_id": request_id}
            await gateway.client.post("/api/v1/cancel_future", body, SDK_HEADERS)
        assert await stages(gateway) == {"queued": (1, 2), "upstream": (10, 1), "deliver": (0, 0)}
        fault.succeed.set()
        assert (await gateway.poll(running).response()).status == 200
        assert await stages(gateway) == {
            "queued": (1, 3),
            "upstream": (10.5, 2),
            "deliver": (0, 1),
        }


def test_large_numbers_are_exact() -> None:
    metrics = Metrics()
    metrics.samples["succeeded"] = 1_234_567
    metrics.gauge("charged_bytes", "Bytes.", lambda: 12_345_678_901)
    metrics.gauge("ratio", "A fraction.", lambda: 0.25)
    lines = metrics.render().decode().splitlines()
    assert 'asgi_gateway_samples_total{outcome="succeeded"} 1234567' in lines
    assert "asgi_gateway_charged_bytes 12345678901" in lines
    assert "asgi_gateway_ratio 0.25" in lines
    assert "asgi_gateway_bugs_total 0" in lines


async def test_every_number_is_one_with_a_journal_too(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    async with driven(upstream.url, state__dir=str(tmp_path)) as gateway:
        await gateway.handshake()
        text = await scraped(gateway)
        for line in text.decode().splitlines():
            if not line.startswith("#"):
                float(line.rpartition(" ")[2])
        assert metric(text, "journal_healthy") == 1
        assert metric(text, "journal_bytes") > 0


async def test_durations_fall_into_buckets_that_reach_past_an_hour(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with driven(upstream.url, session__timeout_s=10_000) as gateway:
        await gateway.handshake()
        ids = [(await gateway.submit(n)).json()["request_id"] for n in range(2)]
        await held.running(2)
        await gateway.advance(2000)
        held.release()
        for request_id in ids:
            assert (await gateway.poll(request_id).response()).status == 200
        text = await scraped(gateway)
        for name, labels in (
            ("stage_seconds", {"stage": "upstream"}),
            ("sample_duration_seconds", {}),
        ):
            assert metric(text, f"{name}_bucket", **labels, le="1200.0") == 0
            assert metric(text, f"{name}_bucket", **labels, le="2400.0") == 2
            assert metric(text, f"{name}_bucket", **labels, le="+Inf") == 2
            assert metric(text, f"{name}_count", **labels) == 2
            assert metric(text, f"{name}_sum", **labels) == 4000
        assert metric(text, "stage_seconds_bucket", stage="deliver", le="0.001") == 2


def test_a_duration_on_a_bound_is_in_its_bucket() -> None:
    metrics = Metrics()
    for seconds in (0.0, 0.001, 0.0011, 1e9):
        metrics.sample_duration.observe(seconds)
    text = metrics.render()
    assert metric(text, "sample_duration_seconds_bucket", le="0.001") == 2
    assert metric(text, "sample_duration_seconds_bucket", le="0.0025") == 3
    assert metric(text, "sample_duration_seconds_bucket", le="4800.0") == 3
    assert metric(text, "sample_duration_seconds_bucket", le="+Inf") == 4


async def test_the_process_is_told_as_other_exporters_do(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        lines = (await scraped(gateway)).decode().splitlines()
        values = {
            name: float(value)
            for name, _, value in (line.partition(" ") for line in lines)
            if name.startswith("process_")
        }
    assert values["process_open_fds"] == pytest.approx(len(os.listdir("/proc/self/fd")), abs=5)
    assert values["process_max_fds"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert values["process_cpu_seconds_total"] == pytest.approx(time.process_time(), rel=0.2)
    assert values["process_resident_memory_bytes"] > 1 << 24
    assert 0 <= time.time() - values["process_start_time_seconds"] < 86_400


def series(text: bytes) -> list[str]:
    lines = text.decode().splitlines()
    return [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]


async def test_what_is_sampled_makes_no_new_series(upstream: FakeUpstream) -> None:
    """Successes, failures, retries, refusals and abandoned polls of several sessions."""
    answers = [answer(500, {"error": {"message": "engine"}}), answer(400, b"no"), None]

    async def script(request: Request) -> Raw:
        if answers and (given := answers.pop()):
            return given
        return answer(200, completion([1, 2], [-1.0, -2.0]))

    upstream.script = script
    async with driven(upstream.url, store__max_in_flight=2) as gateway:
        before = series(await scraped(gateway))
        assert len(before) == len(set(before))
        for _ in range(3):
            await gateway.handshake()
            ids = [(await gateway.submit(n)).json().get("request_id") for n in range(3)]
            assert ids[2] is None
            gateway.poll(ids[0]).hang_up()
            while gateway.gateway._store.in_flight:
                await gateway.advance(1)
                await asyncio.sleep(0.001)
            for request_id in ids[:2]:
                assert (await gateway.poll(request_id).response()).status == 200
        assert series(await scraped(gateway)) == before
