"""The figures of a flood: as structs, which are the JSON, and as a table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from tests.support.flood.ledger import Tally, UpstreamView
from tests.support.flood.probe import Seen

DESCRIPTORS_CAP: Final = 20_000
# Counters of the gateway that a flood must leave at zero.
MUST_BE_ZERO: Final = (
    "bugs_total",
    "results_unfetched_total",
    'late_events_total{event="succeed"}',
    'late_events_total{event="fail"}',
    'polls_total{result="abandoned"}',
)


class Phase(msgspec.Struct):
    """One stretch of a cycle. Latencies are of healthz, from when each probe was due."""

    name: str
    seconds: float
    gateway_cpu_s: float
    client_cpu_s: float
    stand_in_cpu_s: float
    probes: int
    healthz_p50_ms: float
    healthz_p99_ms: float
    healthz_max_ms: float
    rss_max_mb: float


class Cycle(msgspec.Struct):
    """All samples once: submitted, held, released, fetched, acknowledged."""

    samples: int
    outcomes: dict[str, int]
    delivered_again: int
    shared_ids: int
    in_flight_max: int
    upstream: UpstreamView
    tally: Tally
    phases: list[Phase]
    rss_before_mb: float
    rss_in_flight_mb: float
    rss_after_mb: float
    left_in_gateway: int
    problems: list[str]

    @property
    def seconds(self) -> float:
        """Without the time for which everything was only held."""
        return sum(phase.seconds for phase in self.phases if phase.name != "hold")

    @property
    def cpu_ms_per_sample(self) -> float:
        return sum(phase.gateway_cpu_s for phase in self.phases) / self.samples * 1000


class Report(msgspec.Struct):
    """A whole run. `faults` is empty where everything was delivered exactly once."""

    command: str
    environment: dict[str, Any]
    sessions: int
    descriptors: dict[str, int]
    gateway: dict[str, float]
    gateway_stderr_lines: int
    cycles: list[Cycle]
    faults: list[str]


def phase(name: str, seconds: float, cpu_s: Sequence[float], probes: list[Seen]) -> Phase:
    """cpu_s: of gateway, client and stand-in."""
    waits = sorted(seen.latency_s * 1000 for seen in probes) or [float("nan")]
    return Phase(
        name=name,
        seconds=round(seconds, 3),
        gateway_cpu_s=round(cpu_s[0], 2),
        client_cpu_s=round(cpu_s[1], 2),
        stand_in_cpu_s=round(cpu_s[2], 2),
        probes=len(probes),
        healthz_p50_ms=round(waits[len(waits) // 2], 2),
        healthz_p99_ms=round(waits[min(len(waits) - 1, len(waits) * 99 // 100)], 2),
        healthz_max_ms=round(waits[-1], 2),
        rss_max_mb=mb(max((seen.rss_bytes for seen in probes), default=0)),
    )


def faults(
    cycles: list[Cycle],
    gateway: Mapping[str, float],
    descriptors: Mapping[str, int],
    *,
    all_at_once: bool,
) -> list[str]:
    """Why a run does not count as delivered exactly once, within bounds; empty where it does.

    gateway: its /metrics at the end. all_at_once: whether all samples had to be in flight together.
    """
    found = [
        f"cycle {number}: {count} {text}"
        for number, cycle in enumerate(cycles, 1)
        for text, count in _wrong(cycle).items()
        if count
    ]
    found += [f"the gateway counted {n:g} {x}" for x in MUST_BE_ZERO if (n := gateway.get(x, 0.0))]
    found += [f"{n} descriptors in the {x}" for x, n in descriptors.items() if n > DESCRIPTORS_CAP]
    if all_at_once:
        found += [
            f"cycle {number}: only {cycle.in_flight_max} in flight at once"
            for number, cycle in enumerate(cycles, 1)
            if cycle.in_flight_max != cycle.samples
        ]
    return found


def _wrong(cycle: Cycle) -> dict[str, int]:
    return {
        **{outcome: n for outcome, n in cycle.outcomes.items() if outcome != "delivered"},
        "doubled for the client": cycle.delivered_again,
        "ids given to two samples": cycle.shared_ids,
        "doubled upstream": cycle.upstream.doubled,
        "never seen by the upstream": cycle.upstream.missing,
        "polls abandoned": cycle.tally.polls_abandoned,
        "left in the gateway after the last acknowledgement": cycle.left_in_gateway,
    }


def mb(size: int) -> float:
    return round(size / 1e6, 1)


def table(report: Report) -> str:
    """For people: a column per cycle."""
    columns = [dict(_column(cycle)) for cycle in report.cycles]
    names = list(columns[0])
    shown = [["", *names]] + [
        [f"cycle {number}", *(column.get(name, "-") for name in names)]
        for number, column in enumerate(columns, 1)
    ]
    widths = [max(map(len, column)) for column in shown]
    text = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in zip(*shown, strict=True)
    ]
    most = ", ".join(f"{name} {n:,}" for name, n in report.descriptors.items())
    text.append(f"most descriptors: {most} (at most {DESCRIPTORS_CAP:,} a process)")
    text += [f"FAULT: {fault}" for fault in report.faults]
    text.append("not delivered exactly once" if report.faults else "all delivered exactly once")
    return "\n".join(text)


def _column(cycle: Cycle) -> Iterator[tuple[str, str]]:
    tally = cycle.tally
    yield "samples", f"{cycle.samples:,}"
    yield "in flight at once (the gateway's gauge)", f"{cycle.in_flight_max:,}"
    for outcome, count in cycle.outcomes.items():
        yield outcome, f"{count:,}"
    yield "doubled, seen by the client", f"{cycle.delivered_again + cycle.shared_ids}"
    yield "doubled, seen by the upstream", f"{cycle.upstream.doubled}"
    yield "never seen by the upstream", f"{cycle.upstream.missing}"
    yield "left in the gateway", f"{cycle.left_in_gateway}"
    yield "polls, abandoned", f"{tally.polls:,}, {tally.polls_abandoned}"
    yield "reconnects, dropped", f"{tally.reconnects}, {tally.dropped}"
    yield "429, resubmitted after 410", f"{tally.submits_429}, {tally.resubmitted}"
    yield "samples/s, holding left out", f"{cycle.samples / cycle.seconds:,.0f}"
    yield "gateway CPU ms a sample", f"{cycle.cpu_ms_per_sample:.3f}"
    yield "RSS MB before, all in flight", f"{cycle.rss_before_mb}, {cycle.rss_in_flight_mb}"
    yield "RSS MB after the last acknowledgement", f"{cycle.rss_after_mb}"
    for part in cycle.phases:
        waits = (part.healthz_p50_ms, part.healthz_p99_ms, part.healthz_max_ms)
        used = (part.gateway_cpu_s, part.client_cpu_s, part.stand_in_cpu_s)
        yield f"{part.name}: seconds", f"{part.seconds:.1f}"
        yield f"{part.name}: healthz ms p50, p99, max", ", ".join(f"{n:.1f}" for n in waits)
        yield f"{part.name}: CPU s gateway, client, stand-in", ", ".join(f"{n:.1f}" for n in used)
