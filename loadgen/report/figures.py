"""The figures of a result by name, as thresholds and comparisons call them."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from loadgen.outcomes import RETRIES, Traffic
from loadgen.report.spectrum import buckets, least_count, percentile
from loadgen.results import STAGES, Histogram, Result

PERCENTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d{1,6})?)")
COMMON: Final = ("p50", "p90", "p99", "p99.9", "p99.99", "max", "mean", "min", "count")


class Unit(enum.Enum):
    """What a figure counts in; times are held in ms, sizes in bytes, shares are of 1."""

    TIME = "ms"
    BYTES = "bytes"
    COUNT = "count"
    SHARE = "share"
    RATE = "per second"


class UnknownFigure(Exception):
    """No figure has this name."""


class TooFew(Exception):
    """A percentile with too few samples above it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """unitless: whether a plain number will do, as the name says the unit or there is none."""

    unit: Unit
    unitless: bool = True
    higher_is_better: bool = False


_TIME: Final = Kind(Unit.TIME)
_COUNT: Final = Kind(Unit.COUNT)
_BYTES: Final = Kind(Unit.BYTES, unitless=False)
_SHARE: Final = Kind(Unit.SHARE)
_RATE: Final = Kind(Unit.RATE, higher_is_better=True)

PLAIN: Final[dict[str, Kind]] = {
    "samples": _COUNT,
    "samples_per_s": _RATE,
    "output_tokens_per_s": _RATE,
    "duration": Kind(Unit.TIME, unitless=False),
    **dict.fromkeys(("succeeded", "failed", "refused", "wrong", "lost", "doubled"), _COUNT),
    **dict.fromkeys(("submits", "polls", "polls_empty", "overdue", "abandoned"), _COUNT),
    **dict.fromkeys(("resubmitted", "connections", "reconnects", "heartbeats_failed"), _COUNT),
    "retries": _COUNT,
    **{f"retries.{name}": _COUNT for name in RETRIES},
    "server_cpu_ms_per_sample": _TIME,
    "server_busy": _SHARE,
    "server_starved": _SHARE,
    **dict.fromkeys(("server_rss_before", "server_rss_peak", "server_rss_after"), _BYTES),
    "server_bytes_per_sample": _BYTES,
    "server_lag_p99_ms": _TIME,
    "server_lag_max_ms": _TIME,
    "server_gc_pause_max_ms": _TIME,
    **dict.fromkeys(("server_descriptors_peak", "server_gc_collections"), _COUNT),
    **dict.fromkeys(("server_in_flight_peak", "server_left_behind", "healthz_failed"), _COUNT),
    "client_cpu_ms_per_sample": _TIME,
    "client_cpu": _SHARE,
    "client_lag_p99_ms": _TIME,
    "client_lag_max_ms": _TIME,
    "late": _COUNT,
    "upstream_requests": _COUNT,
    "upstream_missing": _COUNT,
    "upstream_ceiling_per_s": _RATE,
}


def names() -> list[str]:
    """Every plain name, and every latency with its common statistics."""
    latencies = [f"{stage}.{statistic}" for stage in (*STAGES, "healthz") for statistic in COMMON]
    return [*PLAIN, *latencies]


def kind_of(name: str) -> Kind:
    """What a name counts in. Raises UnknownFigure, which names the nearest ones."""
    if name in PLAIN:
        return PLAIN[name]
    latency = _latency(name)
    if latency is not None:
        return _COUNT if latency[2] == "count" else Kind(Unit.TIME, unitless=False)
    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.5)
    hint = f"; near: {', '.join(near)}" if near else ""
    raise UnknownFigure(f"no figure is called {name!r}{hint}")


def check_count(name: str, samples: int) -> None:
    """Raises TooFew where `name` is a percentile that so many samples cannot give."""
    latency = _latency(name)
    wanted = latency and PERCENTILE.fullmatch(latency[2])
    if not wanted:
        return
    least = least_count(float(wanted[1]))
    if samples < least:
        raise TooFew(f"{name} needs {least:,} samples to have 10 above it, there are {samples:,}")


def figure(result: Result, name: str) -> float | None:
    """The value of a name: ms, bytes, a count, a share of 1 or a rate; None if not measured.

    Raises UnknownFigure and TooFew.
    """
    kind_of(name)
    latency = _latency(name)
    if latency is None:
        return _plain(result, name)
    histogram = _histogram(result, latency[0], latency[1])
    if histogram is None:
        return None
    statistic = latency[2]
    if statistic == "count":
        return histogram.count
    if histogram.count == 0:
        return None
    wanted = PERCENTILE.fullmatch(statistic)
    if wanted:
        check_count(name, histogram.count)
        return percentile(*buckets(histogram), float(wanted[1]))
    return {"max": histogram.max_ms, "mean": histogram.mean_ms, "min": histogram.min_ms}[statistic]


def values(result: Result) -> Iterator[tuple[str, float | None]]:
    """Every name that the result has a value for, with it."""
    for name in names():
        try:
            value = figure(result, name)
        except TooFew:
            continue
        if value is not None:
            yield name, value


def _latency(name: str) -> tuple[str, bool, str] | None:
    """Stage, whether uncorrected, statistic; None if the name is not a latency's."""
    stage, _, statistic = name.partition(".")
    uncorrected = statistic.startswith("uncorrected.") and stage in ("submit", "e2e")
    if uncorrected:
        statistic = statistic.removeprefix("uncorrected.")
    known = stage == "healthz" or stage in STAGES
    if known and (statistic in COMMON or _is_percentile(statistic)):
        return stage, uncorrected, statistic
    return None


def _is_percentile(statistic: str) -> bool:
    return PERCENTILE.fullmatch(statistic) is not None


def _histogram(result: Result, stage: str, uncorrected: bool) -> Histogram | None:
    """From the plan where that is measured, as waiting before the first byte is waiting too."""
    if stage == "healthz":
        return result.server.healthz if result.server else None
    found = result.stages.get(stage)
    if found is None:
        return None
    if uncorrected or found.corrected is None:
        return found.uncorrected
    return found.corrected


def traffic_of(result: Result) -> Traffic | None:
    """What the client sent; None where the tinker package sent it, which does not say."""
    return None if result.plan.style == "sdk" else result.traffic


def _plain(result: Result, name: str) -> float | None:
    outcomes, traffic = result.outcomes, traffic_of(result)
    if name.startswith("retries"):
        _, _, which = name.partition(".")
        if traffic is None:
            return None
        return traffic.retries.get(which, 0) if which else sum(traffic.retries.values())
    if name in ("failed", "refused", "wrong"):
        parts: dict[str, int] = getattr(outcomes, name)
        return sum(parts.values())
    if name in ("succeeded", "lost"):
        found: float = getattr(outcomes, name)
        return found
    direct: dict[str, float | None] = {
        "samples": result.plan.samples,
        "samples_per_s": result.samples_per_s,
        "output_tokens_per_s": result.output_tokens_per_s,
        "duration": result.seconds * 1e3,
        "doubled": result.doubled.total,
        "overdue": None if traffic is None else traffic.polls_overdue,
        "abandoned": None if traffic is None else traffic.polls_abandoned,
        "late": result.client.late,
        "client_cpu": max(result.client.cpu, default=None),
        "client_lag_p99_ms": max(result.client.lag_p99_ms, default=None),
        "client_lag_max_ms": max(result.client.lag_max_ms, default=None),
        "client_cpu_ms_per_sample": result.client.cpu_ms_per_sample,
        "healthz_failed": result.server.healthz_failed if result.server else None,
    }
    if name in direct:
        return direct[name]
    owner, _, field = name.partition("_")
    owners = {"server": result.server, "upstream": result.upstream}
    if owner not in owners:
        return None if traffic is None else float(getattr(traffic, name))
    value: float | None = None if owners[owner] is None else getattr(owners[owner], field)
    return value


def histograms(result: Result) -> Iterator[tuple[str, Histogram]]:
    """Every latency that was measured, with the name that people read, in the stages' order."""
    for stage in STAGES:
        found = result.stages.get(stage)
        if found is None:
            continue
        if found.corrected is not None:
            yield f"{stage}, from plan", found.corrected
            yield f"{stage}, from first byte", found.uncorrected
        else:
            yield stage, found.uncorrected
    if result.server and result.server.healthz:
        yield "healthz", result.server.healthz
