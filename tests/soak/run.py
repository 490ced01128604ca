"""One soak: loads one after the other against one gateway, looked at once a second.

Each load has clients, sessions and connections of its own, polls in batches or one by one by turns.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from loadgen.procfs import descriptors
from loadgen.sampler import Sampler
from loadgen.scenarios import SCENARIOS
from tests.faults.judge import Record, asked, judged
from tests.faults.load import loaded
from tests.soak.churn import churning
from tests.soak.verdict import Soak, memory, returned, steady
from tests.support.processes import serve, stand_in
from tests.support.wire import Remote

HOURS: Final = 2.0
ROUND_S: Final = 60.0
RATE: Final = float(SCENARIOS["soak"].plan["rate"])
TTL_S: Final = 60.0
STEADY_SHARE: Final = 0.2
"""So much of the time is the gateway's to grow to its working size."""

FAULTS: Final = (
    "500:0.004,503=1:0.004,reset_before:0.004,reset_body:0.004,close_midway:0.002,"
    "abort:0.004,502:0.002,html:0.004,null:0.004,truncated:0.002,bad_request:0.002,drip=2:0.002"
)
LAPSE_S: Final = 15.0
"""Not below: clients show signs of life every 10 s, and a held poll shows none meanwhile."""

BACK_WITHIN_S: Final = 30.0


class Extent(NamedTuple):
    """seconds: of all loads together, in rounds of round_s. rate: samples a second.

    ttl_s: how long results are kept, short enough that what is held is steady soon; sessions, too,
    within reason.
    """

    seconds: float
    round_s: float = ROUND_S
    rate: float = RATE
    ttl_s: float = TTL_S
    every_s: float = 1.0
    churn_s: float = 0.5


def extent(time_factor: float) -> Extent:
    """Two hours and so much of them."""
    seconds = HOURS * 3600 * time_factor
    return Extent(seconds, round_s=min(ROUND_S, seconds / 6), ttl_s=min(TTL_S, seconds / 12))


async def soak(extent: Extent) -> Soak:
    """The whole of it, and what it left behind."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        settings = {
            "state__dir": Path(folder, "state"),
            "log__samples": Path(folder, "samples.jsonl"),
            "session__timeout_s": max(LAPSE_S, extent.ttl_s / 2),
            "session__retention_s": max(LAPSE_S, extent.ttl_s),
            "store__completed_ttl_s": extent.ttl_s,
            "store__retrieved_ttl_s": extent.ttl_s / 2,
            "upstream__keepalive_s": min(4.0, extent.ttl_s),
        }
        flags = ("--delay-s", "1", "--jitter", "0.5", "--faults", FAULTS, "--fault-times", "1")
        with stand_in(*flags) as vllm, serve(vllm, **settings) as gateway:
            remote = Remote(gateway.port)
            await remote.handshake()
            sampler = Sampler(gateway.process.pid, gateway.url, every_s=extent.every_s)
            before = await sampler.look()
            looking = asyncio.create_task(sampler.run())
            began = time.monotonic()
            try:
                async with churning(gateway.port, extent.churn_s) as churn:
                    result = await _rounds(extent, gateway.url, vllm, began)
                ended = time.monotonic()
                await _emptied(remote, extent)
                await _closed(gateway.process.pid, before.usage and before.usage.descriptors)
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
            after = await sampler.look()
            result.churn = dict(sorted(churn.counts.items()))
            times, sizes = steady(sampler.seen, began + STEADY_SHARE * (ended - began), ended)
            result.memory = memory(times, sizes)
            result.counts = returned(sampler.seen, before, after)
            result.seconds = round(ended - began, 1)
            said = gateway.process.stderr
            if "Traceback" in said:
                result.problems.append(f"a traceback: {said[said.index('Traceback') :][:1500]}")
            return result


async def _rounds(extent: Extent, url: str, vllm: str, began: float) -> Soak:
    """Loads until the time is up; each has its own ledger."""
    found = Soak(
        seconds=0,
        samples=0,
        survived=0,
        lost=0,
        doubled=0,
        injected=0,
        abandoned=0,
        churn={},
        memory=memory([float(i) for i in range(10)], [0.0] * 10),
        counts=[],
    )
    seen, number = Record({}, {}), 0
    while time.monotonic() - began < extent.seconds:
        samples = max(20, int(extent.rate * extent.round_s))
        result = await loaded(
            url,
            vllm,
            samples,
            *("--scenario", "soak", "--rate", str(extent.rate), "--seed", str(number + 1)),
            *("--style", "future" if number % 2 else "futures", "--warmup-s", "0"),
        )
        now = asked([vllm])
        one = judged(result, now.since(seen))
        seen, number = now, number + 1
        found.samples += samples
        found.survived += one.survived
        found.lost += one.lost
        found.doubled += one.doubled
        found.injected += one.injected
        found.abandoned += result.traffic.polls_abandoned
        if not result.verdict.valid:
            found.busy.append(f"load {number}: {'; '.join(result.verdict.reasons)}")
        found.problems += [f"load {number}: {problem}" for problem in one.problems]
    return found


async def _emptied(remote: Remote, extent: Extent) -> None:
    """Until everything that has a clock is over, or long enough that it ought to be."""
    deadline = time.monotonic() + extent.ttl_s * 2 + BACK_WITHIN_S
    while time.monotonic() < deadline:
        now = await remote.metrics()
        if not now["samples_held"] and not now["polls_inflight"] and not now["charged_bytes"]:
            break
        await asyncio.sleep(0.2)


async def _closed(pid: int, before: int | None) -> None:
    """Until idle connections to the upstream have ended by their own clock, or ought to have."""
    deadline = time.monotonic() + BACK_WITHIN_S
    while (descriptors(pid) or 0) > (before or 0) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
