"""How long one scrape of /metrics holds the event loop, before and with everything in flight.

    python -m tests.bench.scrape --samples 131072 --polls 131072

Samples are accepted, and a poll is parked for each of the first `polls` of them, in this process
and without sockets; one sample is at an upstream, which never answers. A scrape is the whole call
of the application, which never waits, so its time is the loop's. Of many scrapes the median and the
most.
"""

import argparse
import asyncio
import gc
import time
from statistics import median
from typing import Any

import msgspec

from asgi_gateway.caller import DEFAULT
from asgi_gateway.serve import GC_THRESHOLDS
from asgi_gateway.standalone import Standalone
from asgi_gateway.upstream.catalog import Model
from tests.support.asgi_client import AsgiClient, Connection
from tests.support.clock import ManualClock
from tests.support.flood.samples import MODEL, Samples
from tests.support.gateway import SDK_HEADERS, settings
from tests.support.held import Held, metric
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until

API = "/api/v1"
SCRAPES = 50
# Requests between two turns of the loop.
AT_ONCE = 256
SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/metrics",
    "root_path": "",
    "headers": [],
}


class Figures(msgspec.Struct):
    """Milliseconds of one scrape; `samples` and `polls` as the scrape itself says."""

    samples: int
    polls: int
    bytes: int
    idle_ms: float
    full_ms: float
    full_max_ms: float


async def scrape(gateway: Standalone) -> tuple[bytes, float]:
    """The text, and for how many milliseconds the loop was held.

    Raises:
        RuntimeError: it waited for something, so its time is not the loop's alone.
    """
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    began = time.perf_counter()
    running = gateway(SCOPE, receive, send)
    try:
        running.send(None)
    except StopIteration:
        took_ms = 1000 * (time.perf_counter() - began)
        assert sent[0]["status"] == 200
        return sent[1]["body"], took_ms
    running.close()
    raise RuntimeError("a scrape waited for something")


async def scrapes(gateway: Standalone) -> list[float]:
    times = []
    for _ in range(SCRAPES):
        await asyncio.sleep(0)
        times.append((await scrape(gateway))[1])
    return times


async def measure(samples: int, polls: int, sessions: int = 4) -> Figures:
    """sessions: over so many sampling sessions the samples are spread."""
    upstream = FakeUpstream()
    Held(upstream)
    async with upstream.running():
        options = settings(upstream.url, upstream__max_connections=1, store__max_in_flight=samples)
        # On a clock that stands still no hold ends.
        gateway = Standalone(options, signals=False, clock=ManualClock())
        async with gateway.running():
            return await _measured(gateway, samples, polls, sessions)


async def _measured(gateway: Standalone, samples: int, polls: int, sessions: int) -> Figures:
    made = Samples(64, 16)
    client = AsgiClient(gateway)
    parked: list[Connection] = []
    session = gateway._sessions.create(DEFAULT.name, gateway._clock.now())
    model = Model(upstream_name=MODEL, base_model=MODEL, cache_salt="base")
    create = gateway._sessions.create_sampling
    targets = [create(session, n, model).sampling_session_id for n in range(sessions)]
    idle = await scrapes(gateway)
    for number in range(samples):
        body = made.request(number, targets[number % sessions], number)
        promise = await client.post(f"{API}/asample", body, SDK_HEADERS)
        if number < polls:
            wish = {"request_id": promise.json()["request_id"]}
            path = f"{API}/retrieve_future"
            parked.append(client.start("POST", path, wish, SDK_HEADERS))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    await until(lambda: gateway._store.parked == polls)
    gc.freeze()  # as after a pass, which is not a scrape's
    full = await scrapes(gateway)
    text, _ = await scrape(gateway)
    return Figures(
        samples=round(metric(text, "samples_inflight")),
        polls=round(metric(text, "polls_inflight")),
        bytes=len(text),
        idle_ms=median(idle),
        full_ms=median(full),
        full_max_ms=max(full),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=131_072)
    parser.add_argument("--polls", type=int, default=131_072, help="each is a task")
    parser.add_argument("--sessions", type=int, default=4)
    arguments = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    figures = asyncio.run(measure(arguments.samples, arguments.polls, arguments.sessions))
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
