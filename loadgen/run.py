"""A run: the processes go, what is held is released, and all of it becomes one Result."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from loadgen import measure
from loadgen.beside import beside
from loadgen.environment import environment
from loadgen.fleet import Fleet, FleetError, started
from loadgen.ledger import Merged
from loadgen.measure import Hit
from loadgen.plan import Plan
from loadgen.processes import machine_cpu_s
from loadgen.procfs import tree
from loadgen.results import ClientCheck, Phase, Result, Server, Upstream
from loadgen.selfcheck import Check
from loadgen.standin import StandIn
from loadgen.verdict import judge, problems, validity
from loadgen.worker import Progress

LOOK_S: Final = 0.5
SLACK_S: Final = 30.0
"""A worker ends its sessions and writes its ledger within this after the plan's time."""

Show = Callable[[Progress, float], None]
"""Told the processes' progress and the seconds since the start, some times a second."""


class Parts(NamedTuple):
    """What a run has besides its plan.

    servers: the CPU seconds so far of other processes, by name; the one that is measured is called
    "server" and has the pid server_pid. profile: which of it ("server") and the first client
    process ("client") are recorded. ceiling_per_s: what the stand-in can do, where it was measured.
    """

    command: str = ""
    stand_in: StandIn | None = None
    servers: Mapping[str, Callable[[], float]] = {}
    server_pid: int | None = None
    ceiling_per_s: float | None = None
    sdk_python: str | None = None
    show: Show | None = None
    profile: Sequence[str] = ()


class Stretches:
    """The phases of a run as they pass."""

    def __init__(self, servers: Mapping[str, Callable[[], float]], fleet: Fleet) -> None:
        self.phases: list[Phase] = []
        self._servers = servers
        self._fleet = fleet
        self._name = ""
        self._began, self._cpu_s = 0.0, {"client": 0.0}

    def begin(self, name: str) -> None:
        """End the phase before, begin this one; no name begins none."""
        at, cpu_s = time.monotonic(), self._now()
        if self._name:
            used = {who: round(s - self._cpu_s[who], 2) for who, s in cpu_s.items()}
            began_s = round(self._began - self._fleet.start, 3)
            seconds = round(at - self._began, 3)
            self.phases.append(Phase(name=self._name, began_s=began_s, seconds=seconds, cpu_s=used))
        self._name, self._began, self._cpu_s = name, at, cpu_s

    def _now(self) -> dict[str, float]:
        return {"client": self._fleet.total().cpu_s} | {
            name: read() for name, read in self._servers.items()
        }


async def run(plan: Plan, parts: Parts) -> Result:
    """Raises FleetError where the processes cannot begin, StandInError where it does not answer."""
    where = environment(parts.command)
    with tempfile.TemporaryDirectory(prefix="loadgen-") as folder:
        async with started(plan, Path(folder), parts.sdk_python) as fleet:
            stretches = Stretches(parts.servers, fleet)
            async with beside(
                plan.url,
                server_pid=parts.server_pid,
                stand_in=parts.stand_in,
                profile=_profiled(parts, fleet),
            ) as watched:
                before = machine_cpu_s()
                await _driven(plan, parts, fleet, stretches)
                after = machine_cpu_s()
            merged, checks = fleet.merged()
            where.versions.update(fleet.versions)
    hits = None if parts.stand_in is None else await parts.stand_in.hits()
    upstream = (
        None if hits is None else _upstream(merged, hits, parts.ceiling_per_s, watched.forgotten)
    )
    faults = watched.faults
    if faults and parts.stand_in is not None:
        measure.attribute(faults, merged, await parts.stand_in.faulted())
    client = _client(plan, checks, (after[0] - before[0]) / max(after[1] - before[1], 0.01))
    first = float(merged.planned.min(initial=np.inf, where=merged.planned > 0))
    last = float(merged.done.max(initial=0.0))
    seconds = max(last - first, 1e-3) if last else 0.0
    held_s = sum(phase.seconds for phase in stretches.phases if phase.name == "hold")
    moving_s = max(seconds - held_s, 1e-3)
    outcomes = measure.outcomes(merged)
    doubled = measure.doubled(plan, merged, hits, excused=watched.injected)
    server = _server(plan, parts, stretches.phases)
    seen = watched.server(server, plan.samples, fleet.start)
    reasons = validity(
        plan, client, None if server is None else seen, watched.stand_in_busy(moving_s)
    )
    result = Result(
        environment=where,
        plan=plan,
        seconds=round(moving_s, 3),
        samples_per_s=round(outcomes.succeeded / moving_s, 2),
        output_tokens_per_s=round(float(merged.tokens.sum(dtype=np.int64)) / moving_s, 1),
        outcomes=outcomes,
        doubled=doubled,
        traffic=merged.traffic,
        stages=measure.stages(plan, merged, hits),
        series=measure.series(merged, fleet.start, last or fleet.start, fleet.timeline),
        phases=stretches.phases,
        client=client,
        server=server,
        upstream=upstream,
        verdict=judge(reasons, problems(plan, outcomes, doubled, faults)),
        faults=faults,
        notes=merged.problems,
    )
    return watched.completed(result, fleet.start)


def _profiled(parts: Parts, fleet: Fleet) -> dict[str, int]:
    """The processes to record, by name."""
    known = {"client": fleet.pids[0]}
    if parts.server_pid is not None:
        known["server"] = parts.server_pid
    return {who: known[who] for who in parts.profile if who in known}


async def _driven(plan: Plan, parts: Parts, fleet: Fleet, stretches: Stretches) -> None:
    """From `go` until every process has ended."""
    await fleet.go()
    listening = asyncio.create_task(fleet.listen())
    stretches.begin("submit" if plan.arrivals == "closed" else "run")
    watching = asyncio.create_task(_watched(plan, parts, fleet, stretches))
    within_s = plan.within_s + SLACK_S
    try:
        await asyncio.wait_for(asyncio.shield(listening), within_s)
    except TimeoutError:
        raise FleetError(f"the processes did not end within {within_s:g} s") from None
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        for task in (watching, listening):
            task.cancel()
        await asyncio.gather(watching, listening, return_exceptions=True)
    stretches.begin("")


async def _watched(plan: Plan, parts: Parts, fleet: Fleet, stretches: Stretches) -> None:
    """Show progress; where the loop is closed, tell submit, hold and deliver apart."""
    submitting = plan.arrivals == "closed"
    while True:
        await fleet.changed(LOOK_S)
        total = fleet.total()
        if parts.show is not None:
            parts.show(total, time.monotonic() - fleet.start)
        if submitting and max(total.accepted, total.settled) + total.failed >= plan.samples:
            submitting = False
            if plan.barrier and parts.stand_in is not None:
                stretches.begin("hold")
                await asyncio.sleep(plan.hold_s)
                stretches.begin("deliver")
                await parts.stand_in.release()
            else:
                stretches.begin("deliver")


def _client(plan: Plan, checks: Sequence[Check], machine_busy: float) -> ClientCheck:
    return ClientCheck(
        cpu=[check.cpu for check in checks],
        starved=[check.starved for check in checks],
        lag_p99_ms=[check.lag_p99_ms for check in checks],
        lag_max_ms=[check.lag_max_ms for check in checks],
        late=sum(check.late for check in checks),
        late_max_ms=max((check.late_max_ms for check in checks), default=0.0),
        cpu_ms_per_sample=round(sum(check.cpu_s for check in checks) / plan.samples * 1000, 4),
        descriptors_peak=[check.descriptors_peak for check in checks],
        machine_busy=round(machine_busy, 4),
    )


def _server(plan: Plan, parts: Parts, phases: Sequence[Phase]) -> Server | None:
    """What /proc tells of the process that is measured, while something was to do."""
    if parts.server_pid is None:
        return None
    moving = [phase for phase in phases if phase.name != "hold"]
    cpu_s = sum(phase.cpu_s["server"] for phase in phases)
    moving_cpu_s = sum(phase.cpu_s["server"] for phase in moving)
    pids = tree(parts.server_pid)
    # Of several the first only watches over the others.
    seconds = max(sum(phase.seconds for phase in moving), 1e-3) * max(len(pids) - 1, 1)
    return Server(
        pids=pids,
        cpu_s=round(cpu_s, 2),
        cpu_ms_per_sample=round(cpu_s / plan.samples * 1000, 4),
        busy=round(moving_cpu_s / seconds, 4),
    )


def _upstream(merged: Merged, hits: Hit, ceiling_per_s: float | None, forgotten: int) -> Upstream:
    """forgotten: ids that the stand-in no longer knows; they are not missing."""
    ids = [request_id for ids in merged.ids for request_id in ids]
    return Upstream(
        requests=sum(count for count, _, _ in hits.ids.values()),
        samples=len(hits.ids),
        missing=max(0, sum(request_id not in hits.ids for request_id in ids) - forgotten),
        ceiling_per_s=ceiling_per_s,
    )
