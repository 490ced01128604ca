"""What is watched beside a run: the server at 1 Hz, healthz at 10 Hz, the stand-in, profiles.

async with beside(plan.url, server_pid=pid, stand_in=stand_in) as watched:
    ...  # the run
result = watched.completed(result, start)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec

from loadgen import profiling
from loadgen.counts import Counted
from loadgen.healthz import Probe
from loadgen.results import FaultCount, Profile, Result, Server, Upstream
from loadgen.sampler import Sampler, starved
from loadgen.standin import StandIn, injected

LATE_NOTED_S: Final = 0.05

_OF_THE_RUN: Final = ("cpu_s", "cpu_ms_per_sample", "busy")
"""What the run knows better where it knows it: it tells phases apart."""


class Beside:
    """Complete once its block has ended."""

    def __init__(self, sampler: Sampler, probe: Probe) -> None:
        self.sampler = sampler
        self.probe = probe
        self.before: Counted | None = None
        self.after: Counted | None = None
        self.profiles: list[Profile] = []
        self.notes: list[str] = []
        self.began = time.monotonic()
        self.ended = self.began

    def __repr__(self) -> str:
        return f"<Beside {self.sampler!r} {self.probe!r}>"

    @property
    def faults(self) -> list[FaultCount]:
        """What the stand-in gave during the block; `seen` is for the run to set."""
        if self.before is None or self.after is None:
            return []
        return injected(self.before, self.after)

    @property
    def forgotten(self) -> int:
        """Request ids that the stand-in has dropped meanwhile."""
        if self.before is None or self.after is None:
            return 0
        return self.after.forgotten - self.before.forgotten

    @property
    def injected(self) -> int:
        """All faults together: so many repetitions upstream have their reason."""
        return sum(fault.injected for fault in self.faults)

    def completed(self, result: Result, start: float) -> Result:
        """The result with all of this in it. start: of its series, on the monotonic clock."""
        self.sampler.fill(result.series, start)
        self.probe.fill(result.series, start)
        return msgspec.structs.replace(
            result,
            server=self.server(result.server, result.plan.samples, start),
            upstream=self.upstream(result.upstream),
            faults=result.faults or self.faults,
            profiles=[*result.profiles, *self.profiles],
            notes=[*result.notes, *self.notes],
        )

    def server(self, known: Server | None, samples: int, start: float) -> Server:
        """What was seen of it, with what the run knows already."""
        found = self.sampler.server(samples)
        found.starved = starved(self.sampler.seen, start, self.ended)
        found.healthz = self.probe.histogram(start)
        found.healthz_failed = self.probe.failed
        if known is not None:
            for name in _OF_THE_RUN:
                if (value := getattr(known, name)) is not None:
                    setattr(found, name, value)
            found.pids = found.pids or known.pids
        return found

    def stand_in_busy(self, seconds: float) -> float | None:
        """Share of a core of each of its processes in so many seconds; None where not measured."""
        if self.before is None or self.after is None:
            return None
        return (self.after.cpu_s - self.before.cpu_s) / self.after.processes / seconds

    def upstream(self, known: Upstream | None) -> Upstream | None:
        """With the stand-in's counters, as they rose during the block."""
        if known is None or self.before is None or self.after is None:
            return known
        return msgspec.structs.replace(
            known,
            aborted=self.after.aborted - self.before.aborted,
            running_peak=self.after.running_max,
            cpu_s=round(self.after.cpu_s - self.before.cpu_s, 3),
        )


@contextlib.asynccontextmanager
async def beside(
    url: str,
    *,
    server_pid: int | None = None,
    stand_in: StandIn | None = None,
    profile: Mapping[str, int] | None = None,
) -> AsyncIterator[Beside]:
    """Watch while the block runs. profile: pids to record, by name (server, client).

    Raises ValueError for a bad URL, StandInError where the stand-in does not answer.
    """
    sampler = Sampler(server_pid, url)
    before = None if stand_in is None else await stand_in.counts()
    watched = Beside(sampler, Probe(url))
    try:
        watched.before = before
        # py-spy takes its time to attach and to write; nothing else may wait for it.
        recordings = await asyncio.to_thread(profiling.started, profile or {}, watched.notes)
        await sampler.look()
        looking = asyncio.create_task(sampler.run())
        watched.began = time.monotonic()
        try:
            yield watched
        finally:
            watched.ended = time.monotonic()
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await sampler.look()
            watched.profiles = await asyncio.to_thread(profiling.stopped, recordings, watched.notes)
        if stand_in is not None:
            watched.after = await stand_in.counts()
        if watched.forgotten:
            watched.notes.append(
                f"the stand-in has forgotten {watched.forgotten:,} request ids: what is missing or "
                "doubled among them is not known; give it more --ids-kept"
            )
    finally:
        await asyncio.to_thread(watched.probe.stop)
    if watched.probe.late_max_s > LATE_NOTED_S:
        watched.notes.append(
            f"the healthz probe was up to {watched.probe.late_max_s * 1000:,.0f} ms late itself: "
            "the machine was busy"
        )
