"""One soak: loads one after the other against one gateway, looked at once a second.

Each load has clients, sessions and connections of its own, polls in batches or one by one by turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from loadgen.procfs import descriptors
from loadgen.sampler import Sampler, Seen
from loadgen.scenarios import SCENARIOS
from tests.faults.judge import NOTHING, judged
from tests.faults.judge import asked as asked_for
from tests.faults.load import loaded
from tests.soak.churn import churning
from tests.soak.verdict import DESCRIPTORS_MORE, PREFIX, Soak, kept, memory, returned, steady
from tests.soak.watched import AT_REST, asked
from tests.support.processes import Process, environment, process, stand_in
from tests.support.wire import Remote

HOURS: Final = 2.0
ROUND_S: Final = 60.0
RATE: Final = float(SCENARIOS["soak"].plan["rate"])
TTL_S: Final = 60.0
WARM_SHARE: Final = 0.2
"""So much of the time is the gateway's to grow to its working size."""

STEADY_AFTER: Final = 0.1
"""So much of the rest is left out of the slope, as what is held fills up again."""

FAULTS: Final = (
    "500:0.004,503=1:0.004,reset_before:0.004,reset_body:0.004,close_midway:0.002,"
    "abort:0.004,502:0.002,html:0.004,null:0.004,truncated:0.002,bad_request:0.002,drip=2:0.002"
)
LAPSE_S: Final = 15.0
"""Not below: clients show signs of life every 10 s, and a held poll shows none meanwhile."""

GRACE_S: Final = 10.0
BACK_WITHIN_S: Final = 30.0


class Extent(NamedTuple):
    """seconds: of all loads together, in rounds of round_s. rate: samples a second.

    ttl_s: how long results are kept, short enough that what is held is steady soon; sessions, too,
    within reason: not below lapse_s. hold_s: of polls.
    """

    seconds: float
    round_s: float = ROUND_S
    rate: float = RATE
    ttl_s: float = TTL_S
    every_s: float = 1.0
    churn_s: float = 0.5
    lapse_s: float = LAPSE_S
    hold_s: float = 30.0


def extent(time_factor: float) -> Extent:
    """Two hours and so much of them."""
    seconds = HOURS * 3600 * time_factor
    return Extent(seconds, round_s=min(ROUND_S, seconds / 6), ttl_s=min(TTL_S, seconds / 12))


@contextlib.contextmanager
def watched(vllm: str, told: Path, **settings: object) -> Iterator[Process]:
    """`serve` that tells in the file `told` what it holds at rest."""
    command = [sys.executable, "-m", "tests.soak.watched", "serve", "--port", "0"]
    environ = {**environment(**settings), AT_REST: str(told)}
    with process([*command, "--upstream", vllm], environ) as running:
        yield running


async def soak(extent: Extent) -> Soak:
    """The whole of it, and what it left behind.

    First so much that the gateway has its working size, then it comes to rest, then the other part.
    """
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        told = Path(folder, "at-rest.json")
        settings = {
            "state__dir": Path(folder, "state"),
            "log__samples": Path(folder, "samples.jsonl"),
            "session__timeout_s": max(extent.lapse_s, extent.ttl_s / 2),
            "session__retention_s": max(extent.lapse_s, extent.ttl_s),
            "poll__hold_s": extent.hold_s,
            "store__completed_ttl_s": extent.ttl_s,
            "store__retrieved_ttl_s": extent.ttl_s / 2,
            "upstream__keepalive_s": min(4.0, extent.ttl_s),
            # So long it is remembered who waits to be sent again; less than a rest lasts.
            "upstream__unavailable_grace_s": GRACE_S,
        }
        flags = ("--delay-s", "1", "--jitter", "0.5", "--faults", FAULTS, "--fault-times", "1")
        with stand_in(*flags) as vllm, watched(vllm, told, **settings) as gateway:
            url = gateway.first_line().rsplit(" ", 1)[-1]
            remote = Remote(int(url.rsplit(":", 1)[1]))
            sampler = Sampler(gateway.pid, url, every_s=extent.every_s)
            before = await sampler.look()
            looking = asyncio.create_task(sampler.run())
            rounds = _Rounds(extent, url, vllm)
            rests, began = [], 0.0
            try:
                for share in (WARM_SHARE, 1.0 - WARM_SHARE):
                    began = time.monotonic()
                    async with churning(remote.port, extent.churn_s) as churn:
                        await rounds.run(share * extent.seconds)
                    ended = time.monotonic()
                    rounds.churn += churn.counts
                    rounds.problems += [f"a session broke off: {e}" for e in churn.errors[:3]]
                    await _emptied(remote, extent, before)
                    await _closed(gateway.pid, before.usage and before.usage.descriptors)
                    rest = await asyncio.to_thread(asked, gateway.pid, told)
                    rests.append((rounds.samples, rest))
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
            after = await sampler.look()
            times, sizes = steady(sampler.seen, began + STEADY_AFTER * (ended - began), ended)
            problems, said = rounds.problems, gateway.stderr
            if "Traceback" in said:
                problems.append(f"a traceback: {said[said.index('Traceback') :][:1500]}")
            return Soak(
                seconds=round(rounds.seconds, 1),
                rate=extent.rate,
                samples=rounds.samples,
                survived=rounds.survived,
                lost=rounds.lost,
                doubled=rounds.doubled,
                injected=rounds.injected,
                abandoned=rounds.abandoned,
                churn=dict(sorted(rounds.churn.items())),
                memory=memory(times, sizes),
                kept=kept(*rests),
                counts=returned(sampler.seen, before, after),
                busy=rounds.busy,
                problems=problems,
            )


class _Rounds:
    """Loads one after the other, each with its own ledger, and the sum of what they came to."""

    def __init__(self, extent: Extent, url: str, vllm: str) -> None:
        self._extent, self._url, self._vllm = extent, url, vllm
        self._seen, self._number = NOTHING, 0
        self.seconds = 0.0
        self.samples = self.survived = self.lost = self.doubled = 0
        self.injected = self.abandoned = 0
        self.churn: Counter[str] = Counter()
        self.busy: list[str] = []
        self.problems: list[str] = []

    async def run(self, seconds: float) -> None:
        """At least one, until the time is up."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            await self._one()
        self.seconds += time.monotonic() - began

    async def _one(self) -> None:
        rate, number = self._extent.rate, self._number
        samples = max(20, int(rate * self._extent.round_s))
        result = await loaded(
            self._url,
            self._vllm,
            samples,
            *("--scenario", "soak", "--rate", str(rate), "--seed", str(number + 1)),
            *("--style", "future" if number % 2 else "futures", "--warmup-s", "0"),
        )
        now = asked_for([self._vllm])
        one = judged(result, now.since(self._seen))
        self._seen, self._number = now, number + 1
        self.samples += samples
        self.survived += one.survived
        self.lost += one.lost
        self.doubled += one.doubled
        self.injected += one.injected
        self.abandoned += result.traffic.polls_abandoned
        if not result.verdict.valid:
            self.busy.append(f"load {number + 1}: {'; '.join(result.verdict.reasons)}")
        self.problems += [f"load {number + 1}: {problem}" for problem in one.problems]


async def _emptied(remote: Remote, extent: Extent, before: Seen) -> None:
    """Until everything that has a clock is over, or long enough that it ought to be."""
    sessions = before.named(f"{PREFIX}sessions") or 0
    deadline = (
        time.monotonic() + max(extent.lapse_s, extent.ttl_s) + extent.ttl_s * 2 + BACK_WITHIN_S
    )
    while time.monotonic() < deadline:
        now = await remote.metrics()
        held = now["samples_held"] + now["polls_inflight"] + now["charged_bytes"]
        if not held and now["sessions"] <= sessions:
            break
        await asyncio.sleep(0.2)


async def _closed(pid: int, before: int | None) -> None:
    """Until idle connections to the upstream have ended by their own clock, or ought to have."""
    deadline = time.monotonic() + BACK_WITHIN_S
    most = (before or 0) + DESCRIPTORS_MORE
    while (descriptors(pid) or 0) > most and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
