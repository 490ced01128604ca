"""Metrics say where samples are, so that a stalled middle is obvious from one scrape."""

import asyncio
from pathlib import Path

from asgi_gateway.metrics import Metrics
from tests.support.asgi_client import turns
from tests.support.gateway import Driven, driven
from tests.support.held import metric
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
