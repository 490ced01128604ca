"""What the client costs: its CPU a sample against two of the leanest POSTs, in turns.

    loadgen cost --style futures

Floor and client send as many bytes over as many connections to the same bare server and are
answered with as many. The floor writes requests that were made before, lets httptools parse the
answers, and looks at nothing. Each turn is a pair, first one then the other, and the figure is the
median of the pairs' ratios. Exit status 1 where it is above `BAR`.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, cast

import httptools

from loadgen.address import address
from loadgen.client import Client
from loadgen.outcomes import Traffic
from loadgen.plan import Plan
from loadgen.processes import serving
from loadgen.samples import Samples
from loadgen.session import Api, whole
from loadgen.wire import PROTOBUF

BAR: Final = 1.5
CONNECTIONS: Final = 64
SAMPLES: Final = 2_000
TURNS: Final = 25
WITHIN_S: Final = 40.0
LEAST_TURNS: Final = 5
"""Made however long they take: of fewer a median says little."""


class Turn(NamedTuple):
    """Microseconds of CPU a sample."""

    floor: float
    client: float


class _Leanest(asyncio.Protocol):
    """Sends its one request again and again, in turns with its partner, which sends the other."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser: Any = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport
        self.partner: _Leanest

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def send(self) -> None:
        self.transport.write(self._request)

    def on_message_complete(self) -> None:
        self.partner.send()


class _Last(_Leanest):
    """The one with the second request, which counts samples: to begin and to end, of all pairs."""

    def __init__(self, request: bytes, left: list[int], end: asyncio.Event) -> None:
        super().__init__(request)
        self._left = left
        self._end = end

    def on_message_complete(self) -> None:
        left = self._left
        left[1] -= 1
        if left[0] > 0:
            left[0] -= 1
            self.partner.send()
        elif left[1] == 0:
            self._end.set()


async def measure(
    style: str,
    samples: int = SAMPLES,
    turns: int = TURNS,
    within_s: float = WITHIN_S,
    clock: Callable[[], float] = time.monotonic,
) -> list[Turn]:
    """Of each turn; a first one warms up and does not count.

    No turn is begun after so many seconds of the clock, unless there are fewer than LEAST_TURNS.
    """
    least = min(turns, LEAST_TURNS)
    end = clock() + within_s
    with serving([sys.executable, "-m", "loadgen.bare", style]) as bare:
        found = []
        for turn in range(turns + 1):
            if turn > least and clock() >= end:
                break
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
    """Without the first fifth, in which connections are made; the floor has its own beforehand."""
    client = Client(plan, 0)
    ledger = client.ledger
    try:
        await client.prepare()
        gc.collect()
        driving = asyncio.create_task(client.drive(time.monotonic(), lambda: False))
        while ledger.open > plan.samples * 4 // 5 and not driving.done():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        left, before = ledger.open, time.process_time()
        await driving
        used = time.process_time() - before
    finally:
        client.close()
    if ledger.open or ledger.failed or not left:
        raise RuntimeError(f"the bare server was not answered for: {ledger!r}")
    return used / left * 1e6


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
    left, end = [plan.samples - CONNECTIONS, plan.samples], asyncio.Event()
    loop = asyncio.get_running_loop()
    links = []
    for _ in range(CONNECTIONS):
        first, last = _Leanest(requests[0]), _Last(requests[1], left, end)
        first.partner, last.partner = last, first
        for link in (first, last):
            await loop.create_connection(partial(_itself, link), where.host, where.port)
            links.append(link)
    gc.collect()
    before = time.process_time()
    for link in links[::2]:
        link.send()
    await end.wait()
    used = time.process_time() - before
    for link in links:
        link.transport.abort()
    return used / plan.samples * 1e6


def _itself(link: _Leanest) -> _Leanest:
    return link


def report(style: str, samples: int, turns: int, within_s: float) -> int:
    """Print the medians of both and of their ratio; the exit status.

    Turns are short and many: what else runs on the machine then meets both alike.
    """
    import uvloop

    gc.set_threshold(50_000, 20, 100)  # as in a worker
    found = uvloop.run(measure(style, samples, turns, within_s))
    client = statistics.median(turn.client for turn in found)
    floor = statistics.median(turn.floor for turn in found)
    ratios = [turn.client / turn.floor for turn in found]
    ratio = statistics.median(ratios)
    print(
        f"{client:.1f} us of CPU a sample, two leanest POSTs {floor:.1f} us, medians of "
        f"{len(found)} turns"
    )
    print(
        f"style {style}: {ratio:.2f} times two leanest POSTs, median of {len(found)} pairs "
        f"(the target is {BAR}; single pairs {min(ratios):.2f} to {max(ratios):.2f})"
    )
    return 1 if ratio > BAR else 0
