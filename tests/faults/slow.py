"""Clients that send a byte at a time, and what healthy ones beside them see of it."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from loadgen.results import Result
from tests.faults.found import Found, Size
from tests.faults.judge import asked, judged
from tests.faults.load import loaded, rate
from tests.faults.sockets import Peer, close_all, opened, raise_limit, settled
from tests.support.processes import serve, stand_in
from tests.support.wire import Remote

CLOSED_WITHIN_S: Final = 20.0
EVERY_S: Final = 0.5
PARTS: Final = 25
HEALTHY_PER_S: Final = 150.0
HEALTHY: Final = 1_200
"""Of one load: a p99 needs ten above it."""

PAIRS: Final = 4
BAR: Final = 1.10
NOISE_S: Final = 0.05
"""By so much a p90 differs between two small loads although nothing was changed."""

_HEAD: Final = b"POST /api/v1/asample HTTP/1.1\r\nhost: x\r\n"
_BODY: Final = _HEAD + b"content-length: 1000\r\n\r\n{"


class Slow:
    """So many slow connections at any time: half in a head, half in a body, a new one for each that
    is closed. most, least: how many were open when it was looked."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._count = count
        self.peers: list[Peer] = []
        self.ended = {"header_timeout": 0, "body_timeout": 0}
        self.least = count

    async def _more(self) -> None:
        short = self._count - len(self.peers)
        began = self.total
        self.peers += await opened(self._port, short, lambda n: _BODY if (began + n) % 2 else _HEAD)

    @property
    def total(self) -> int:
        """How many there ever were."""
        return len(self.peers) + sum(self.ended.values())

    async def begin(self) -> None:
        await self._more()

    async def drip(self) -> None:
        """For as long as it is awaited. Not all at once: that would be a burst, not slow."""
        while True:
            peers = list(self.peers)
            for part in range(PARTS):
                await asyncio.sleep(EVERY_S / PARTS)
                for peer in peers[part::PARTS]:
                    if not peer.transport.is_closing():
                        peer.transport.write(b"a")
            gone = [peer for peer in self.peers if peer.gone]
            self.least = min(self.least, len(self.peers) - len(gone))
            for peer in gone:
                self.ended["body_timeout" if peer.data is _BODY else "header_timeout"] += 1
            self.peers = [peer for peer in self.peers if not peer.gone]
            await self._more()


@contextlib.asynccontextmanager
async def slow_clients(port: int, count: int) -> AsyncIterator[Slow]:
    """A Slow while the block runs; it ends with those that are open then."""
    slow = Slow(port, count)
    await slow.begin()
    dripping = asyncio.create_task(slow.drip())
    try:
        yield slow
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
    finally:
        dripping.cancel()


def _all_gone(peers: list[Peer]) -> bool:
    return all(peer.gone for peer in peers)


def percentile_s(result: Result, name: str) -> float:
    stage = result.stages["e2e"]
    found = (stage.corrected or stage.uncorrected).percentiles[name]
    assert found is not None
    return found / 1000


async def slow_loris(size: Size) -> Found:
    """Heads and bodies that come a byte at a time, beside a healthy load; loads with and without
    them by turns."""
    raise_limit()
    limits = dict[str, object](limits__header_s=3, limits__body_idle_s=3, limits__body_s=6)
    samples, pairs, name = (200, 1, "p90") if size.small else (HEALTHY, PAIRS, "p99")
    flags = ("--style", "future", *rate(50.0 if size.small else HEALTHY_PER_S))
    found = Found()
    with stand_in("--delay-s", "0.05") as vllm, serve(vllm, **limits) as gateway:
        alone, beside = [], []
        due = {"header_timeout": 0, "body_timeout": 0}
        for number in range(2 * pairs):
            if (number + 1) // 2 % 2 == 0:  # without, with, with, without
                alone.append(await loaded(gateway.url, vllm, samples, *flags))
                continue
            async with slow_clients(gateway.port, size.sockets) as slow:
                beside.append(await loaded(gateway.url, vllm, samples, *flags))
            peers = slow.peers
            closed_s = await settled(partial(_all_gone, peers), CLOSED_WITHIN_S)
            left = sum(not peer.gone for peer in peers)
            close_all(peers)
            found.needs(closed_s is not None, f"{left} of {len(peers)} were never closed")
            found.needs(
                slow.least >= size.sockets // 4, f"of {size.sockets} only {slow.least} were open"
            )
            found.injected += slow.total
            for reason, count in slow.ended.items():
                due[reason] += count
            for peer in peers:
                due["body_timeout" if peer.data is _BODY else "header_timeout"] += 1
        record = asked([vllm])
        for result in (*alone, *beside):
            one = judged(result, record)
            found.survived += one.survived
            found.lost += one.lost
            found.problems += one.problems
        found.doubled = record.again
        metrics = await Remote(gateway.port).metrics()
        for reason, count in due.items():
            ended = metrics[f'connections_closed_total{{reason="{reason}"}}']
            found.needs(ended == count, f"{ended:g} ended by {reason}, {count} of them are such")
        _compare(found, name, alone, beside)
        return found


def _compare(found: Found, name: str, alone: list[Result], beside: list[Result]) -> None:
    """Medians of the loads' percentiles; where those without differ by more among themselves, that
    is what can be told."""
    without = [percentile_s(result, name) for result in alone]
    with_ = [percentile_s(result, name) for result in beside]
    before_s, during_s = statistics.median(without), statistics.median(with_)
    spread = max(without) / min(without)
    found.figures |= {
        f"{name} without, s": before_s,
        f"{name} with, s": during_s,
        "factor": round(during_s / before_s, 3),
        "factor between two without": round(spread, 3),
    }
    found.recovery_s = max(0.0, round(during_s - before_s, 3))
    noise_s = NOISE_S if len(alone) == 1 else 0.0
    found.needs(
        during_s <= max(BAR, spread) * before_s + noise_s,
        f"{name} of the healthy rose from {before_s:.3f} to {during_s:.3f} s; without them it"
        f" differs by a factor of {spread:.2f}",
    )
