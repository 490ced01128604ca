"""The metrics as a scrape gets them: their numbers and their format."""

import re

from tests.support.asgi_client import turns
from tests.support.gateway import Driven
from tests.support.held import Held, metric
from tests.support.routes import ready
from tests.support.upstream import FakeUpstream


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
