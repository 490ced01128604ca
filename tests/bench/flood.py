"""The rows of a flood: everything in flight at once under batched polls, released, delivered.

`tests.support.flood` does it: one cycle that warms up, then two that count.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import uvloop

from tests.bench.processes import Bench
from tests.bench.table import Figure, Row
from tests.support.flood.report import Cycle, Phase, Report
from tests.support.flood.run import Plan, run

SAMPLES: Final = 131_072
QUICK_SAMPLES: Final = 16_384
HOLD_S: Final = 15.0
QUICK_HOLD_S: Final = 3.0
WITHIN_S: Final = 300.0
GC_GAUGE: Final = "gc_pause_seconds_max"

RSS: Final = Figure("rss-in-flight", "memory with all in flight", "MB", 300, "value")
RSS_BACK: Final = Figure(
    "rss-back", "memory after delivery, over that after the cycle before", "MB", 1.15
)
RSS_SECOND: Final = Figure("rss-second-cycle", "the same, as growth", "MB", 1.02)
RSS_START: Final = Figure("rss-beside-start", "memory after delivery, over that at start", "MB")
HOLD_P99: Final = Figure("healthz-hold-p99", "healthz while all are held, p99", "ms", 5, "value")
BURST_P99: Final = Figure("healthz-burst-p99", "healthz in the burst, p99", "ms", 100, "value")
BURST_MAX: Final = Figure("healthz-burst-max", "healthz in the burst, max", "ms", 250, "value")
GC: Final = Figure("gc-pause", "longest pause of the collector", "ms", 20, "value")
FAULTS: Final = Figure("flood-faults", "lost, failed, doubled, abandoned", "", 0, "value")
RATE: Final = Figure(
    "flood-rate", "samples/s, holding left out", "1/s", 4000, "value", at_least=True
)
FIGURES: Final = (
    RSS, RSS_BACK, RSS_SECOND, RSS_START, HOLD_P99, BURST_P99, BURST_MAX, GC, FAULTS, RATE,
)  # fmt: skip


CYCLES: Final = 3


def measure(bench: Bench, wanted: frozenset[str]) -> Iterator[Row]:
    plan = Plan(
        samples=QUICK_SAMPLES if bench.quick else SAMPLES,
        cycles=CYCLES,
        hold_s=QUICK_HOLD_S if bench.quick else HOLD_S,
        within_s=WITHIN_S,
        gateway_core=bench.server_core,
        client_core=bench.client_core,
        settings=bench.settings,
    )
    for row in rows(uvloop.run(run(plan))):
        if row.name in wanted:
            yield row


def rows(report: Report) -> Iterator[Row]:
    """All rows of a flood whose first cycle warmed up; of the others the worse one counts."""
    yield FAULTS.single(len(report.faults), "; ".join(report.faults))
    if len(report.cycles) < CYCLES:
        why = f"the flood ended in cycle {len(report.cycles)}: {'; '.join(report.faults)}"
        yield from (figure.missing(why, failed=True) for figure in FIGURES if figure != FAULTS)
        return
    warm, *counted = report.cycles
    first, second = counted
    size = f"{second.samples:,} samples, batched polls, journal on"
    yield RSS.single(max(cycle.rss_in_flight_mb for cycle in counted), size)
    yield RSS_BACK.single(first.rss_after_mb, f"warm-up of {size}", floor=warm.rss_after_mb)
    yield RSS_SECOND.single(second.rss_after_mb, floor=first.rss_after_mb)
    yield RSS_START.single(second.rss_after_mb, "no target", floor=warm.rss_before_mb)
    holds = [_phase(cycle, "hold") for cycle in counted]
    bursts = [_phase(cycle, "deliver") for cycle in counted]
    yield HOLD_P99.single(max(p.healthz_p99_ms for p in holds), _probes(holds))
    yield BURST_P99.single(max(p.healthz_p99_ms for p in bursts), _probes(bursts))
    yield BURST_MAX.single(max(p.healthz_max_ms for p in bursts), _probes(bursts))
    pause_s = report.gateway.get(GC_GAUGE)
    if pause_s is None:
        yield GC.missing(f"the gateway has no gauge {GC_GAUGE}")
    else:
        yield GC.single(pause_s * 1000, size)
    slower = min(counted, key=_rate)
    yield RATE.single(_rate(slower), _rate_note(slower))


def _rate(cycle: Cycle) -> float:
    return cycle.samples / cycle.seconds


def _rate_note(cycle: Cycle) -> str:
    """What the rate was limited by."""
    busy = [phase for phase in cycle.phases if phase.name != "hold"]
    gateway = sum(phase.gateway_cpu_s for phase in busy) / cycle.seconds
    beside = sum(phase.client_cpu_s + phase.stand_in_cpu_s for phase in busy) / cycle.seconds
    note = f"{cycle.cpu_ms_per_sample:.3f} ms of CPU a sample; the gateway took {gateway:.0%} of"
    return f"{note} its core, client and stand-in {beside:.0%} of theirs"


def _phase(cycle: Cycle, name: str) -> Phase:
    return next(phase for phase in cycle.phases if phase.name == name)


def _probes(phases: Sequence[Phase]) -> str:
    counts = ", ".join(str(phase.probes) for phase in phases)
    middle = ", ".join(f"{phase.healthz_p50_ms:.1f}" for phase in phases)
    return f"worse of two cycles; {counts} probes, p50 {middle} ms"
