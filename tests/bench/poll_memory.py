"""Bytes that one parked poll takes under uvicorn, beside those of its bare idle connection.

    python -m tests.bench.poll_memory --polls 16000

Resident memory of one `asgi-gateway serve`: after start-up, with as many idle connections (each has
been answered once), and with a poll parked on each. The requests carry the headers that SDK 0.38
sends. The samples are held by the stand-in's barrier or wait in line. Loopback only.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

import msgspec
import uvloop

from tests.support.flood.ledger import Tally
from tests.support.flood.samples import MODEL, Samples
from tests.support.flood.servers import Server, serving
from tests.support.flood.wire import PROTOBUF, Link

START = ("-m", "asgi_gateway", "serve", "--port", "0", "--upstream")
AT_ONCE = 64


async def handshake(link: Link) -> str:
    session = msgspec.json.decode((await link.post(b"/api/v1/create_session", b"{}")).body)
    request = {
        "session_id": session["session_id"],
        "sampling_session_seq_id": 0,
        "base_model": MODEL,
    }
    made = await link.post(b"/api/v1/create_sampling_session", msgspec.json.encode(request))
    return str(msgspec.json.decode(made.body)["sampling_session_id"])


async def parked(link: Link) -> int:
    for line in (await link.get(b"/metrics")).body.splitlines():
        if line.startswith(b"asgi_gateway_polls_inflight "):
            return int(float(line.split()[1]))
    raise AssertionError("no such gauge")


async def measure(gateway: Server, polls: int) -> dict[str, float]:
    tally = Tally()
    control = Link(gateway.port, tally)
    links = [Link(gateway.port, tally) for _ in range(polls)]
    waiting: list[asyncio.Task[object]] = []
    try:
        target = await handshake(control)
        samples = Samples(64, 16)
        ids = []
        for number in range(64):
            body = samples.request(number, target, number)
            promise = msgspec.json.decode((await control.post(b"/api/v1/asample", body)).body)
            ids.append(promise["request_id"])
        started = gateway.rss_bytes()
        for first in range(0, polls, AT_ONCE):
            await asyncio.gather(
                *(link.get(b"/healthz") for link in links[first : first + AT_ONCE])
            )
        idle = gateway.rss_bytes()
        for number, link in enumerate(links):
            body = f'{{"request_id":"{ids[number % 64]}","allow_metadata_only":false}}'.encode()
            poll = link.post(b"/api/v1/retrieve_future", body, accept=PROTOBUF, within_s=60.0)
            waiting.append(asyncio.ensure_future(poll))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        while (held := await parked(control)) < polls:
            if any(task.done() for task in waiting):
                raise RuntimeError(f"a hold ended before all were parked: {held} of {polls}")
            await asyncio.sleep(0.05)
        full = gateway.rss_bytes()
        return {
            "polls": polls,
            "rss_started": started,
            "idle_connection_bytes": (idle - started) / polls,
            "parked_poll_bytes": (full - idle) / polls,
            "together_bytes": (full - started) / polls,
        }
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for link in links:
            link.close()


def main() -> None:
    import sys

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--polls", type=int, default=16_000)
    arguments = parser.parse_args()
    upstream = [sys.executable, "-m", "loadgen", "upstream", "--port", "0", "--barrier"]
    environ = {
        "ASGI_GATEWAY_POLL__HOLD_S": "40",
        "ASGI_GATEWAY_DRAIN__PREDRAIN_S": "0",
        "ASGI_GATEWAY_DRAIN__GRACE_S": "0",
    }
    with (
        tempfile.TemporaryDirectory(prefix="poll-memory-") as scratch,
        serving(upstream) as stand_in,
        serving(
            [sys.executable, *START, f"http://127.0.0.1:{stand_in.port}"],
            environ={**environ, "ASGI_GATEWAY_STATE__DIR": str(Path(scratch) / "state")},
        ) as gateway,
    ):
        figures = uvloop.run(measure(gateway, arguments.polls))
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
