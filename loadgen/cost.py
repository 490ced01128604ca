"""What the client costs: its CPU a sample against two of the leanest POSTs, in turns.

    loadgen cost --style futures

Floor and client send as many bytes over as many connections to the same bare server and are
answered with as many. The floor writes requests that were made before, lets httptools parse the
answers, and looks at nothing. Exit status 1 where the client costs more than `BAR` times as much.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from typing import Any, Final, NamedTuple, cast

import httptools

from loadgen.client import Client
from loadgen.outcomes import Traffic
from loadgen.plan import Plan
from loadgen.processes import serving
from loadgen.samples import Samples
from loadgen.session import Api, whole
from loadgen.wire import PROTOBUF, address

BAR: Final = 1.5
CONNECTIONS: Final = 64


class Turn(NamedTuple):
    """Microseconds of CPU a sample."""

    floor: float
    client: float


class _Leanest(asyncio.Protocol):
    """Sends the two requests in turns until the count of samples is used up."""

    def __init__(self, requests: tuple[bytes, bytes], left: list[int], end: asyncio.Event) -> None:
        """left: samples to begin and samples to end, shared by all connections."""
        self._first, self._second = requests
        self._left = left
        self._end = end
        self._begun = False
        self._parser: Any = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def begin(self) -> None:
        if self._left[0] > 0:
            self._left[0] -= 1
            self._begun = True
            self.transport.write(self._first)

    def on_message_complete(self) -> None:
        if self._begun:
            self._begun = False
            self.transport.write(self._second)
            return
        self._left[1] -= 1
        if self._left[1] == 0:
            self._end.set()
        self.begin()


async def measure(style: str, samples: int, turns: int) -> list[Turn]:
    """Of each turn; a first one warms up and does not count."""
    with serving([sys.executable, "-m", "loadgen.bare", style]) as bare:
        found = []
        for turn in range(turns + 1):
            plan = Plan(
                scenario="cost",
                url=bare.url,
                samples=samples,
                seed=turn,
                style=style,
                submitters=CONNECTIONS,
                fetchers=CONNECTIONS,
                concurrency=CONNECTIONS if style == "future" else 4 * CONNECTIONS,
                within_s=120.0,
            )
            client = await _client(plan)
            floor = await _floor(plan)
            found.append(Turn(floor=floor, client=client))
    return found[1:]


async def _client(plan: Plan) -> float:
    client = Client(plan, 0)
    try:
        await client.prepare()
        gc.collect()
        before = time.process_time()
        await client.drive(time.monotonic(), lambda: False)
        used = time.process_time() - before
    finally:
        client.close()
    if client.ledger.open or client.ledger.failed:
        raise RuntimeError(f"the bare server was not answered for: {client.ledger!r}")
    return used / plan.samples * 1e6


async def _floor(plan: Plan) -> float:
    where = address(plan.url)
    api = Api(where, plan.api_key, Traffic())
    extra = b"x-tinker-request-type: Sample\r\nx-tinker-request-iteration: 0\r\n"
    body = b'{"request_id":"%b","allow_metadata_only":false}' % (b"e" * 41)
    promise = Samples(plan).request(0, api.head(b"asample"), b"t", 0)
    result = whole(api.head(b"retrieve_future", PROTOBUF, extra), body)
    requests = (
        promise.replace(b"/api/v1/asample", b"/floor/promise", 1),
        result.replace(b"/api/v1/retrieve_future", b"/floor/result", 1),
    )
    loop = asyncio.get_running_loop()
    left, end = [plan.samples, plan.samples], asyncio.Event()
    links = []
    for _ in range(CONNECTIONS):
        _, link = await loop.create_connection(
            lambda: _Leanest(requests, left, end), where.host, where.port
        )
        links.append(link)
    gc.collect()
    before = time.process_time()
    for link in links:
        link.begin()
    await end.wait()
    used = time.process_time() - before
    for link in links:
        link.transport.abort()
    return used / plan.samples * 1e6


def report(style: str, samples: int, turns: int) -> int:
    """Print the turns and their median; the exit status."""
    import uvloop

    gc.set_threshold(50_000, 20, 100)  # as in a worker
    found = uvloop.run(measure(style, samples, turns))
    for turn in found:
        print(f"{turn.client:7.1f} us a sample, two leanest POSTs {turn.floor:.1f} us")
    ratio = statistics.median(turn.client / turn.floor for turn in found)
    print(f"style {style}: {ratio:.2f} times two leanest POSTs (the bar is {BAR})")
    return 1 if ratio > BAR else 0
