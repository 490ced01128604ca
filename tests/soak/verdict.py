"""Whether a soak was passed: the slope of the memory, and counts that are back."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from loadgen.report.slope import Slope, slope
from loadgen.sampler import Seen

NOISE_MB: Final = 2.0
"""Less than this over the steady part is not told from the allocator's noise."""

DESCRIPTORS_MORE: Final = 2
"""What a logger or an event loop may have opened since the start."""

TASKS_MORE: Final = 2
BACK_TO_ZERO: Final = (
    "polls_inflight",
    "samples_inflight",
    "samples_queued",
    "samples_running",
    "samples_held",
    "results_held_bytes",
    "charged_bytes",
    "bugs_total",
)
PREFIX: Final = "asgi_gateway_"


class Back(msgspec.Struct, kw_only=True):
    """A count before the load, at most, and after it; most it may be then."""

    name: str
    before: float
    peak: float
    after: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.after <= self.allowed


class Memory(msgspec.Struct, kw_only=True):
    """The resident memory over the steady part. MB are of a million bytes.

    medians_mb: of the blocks, in order of time.
    """

    mb_per_h: float
    low_mb_per_h: float
    high_mb_per_h: float
    bound_mb_per_h: float
    steady_s: float
    blocks: int
    medians_mb: list[float]

    @property
    def ok(self) -> bool:
        """Whether the interval has a slope below the bound in it."""
        return self.low_mb_per_h <= self.bound_mb_per_h


def memory(at_s: list[float], rss_bytes: list[float], seed: int = 1) -> Memory:
    """Of the steady part. Raises ValueError for too few looks."""
    found: Slope = slope(np.array(at_s), np.array(rss_bytes) / 1e6, seed)
    steady_s = at_s[-1] - at_s[0]
    per_h = 3600.0
    return Memory(
        mb_per_h=round(found.per_s * per_h, 3),
        low_mb_per_h=round(found.low * per_h, 3),
        high_mb_per_h=round(found.high * per_h, 3),
        bound_mb_per_h=round(NOISE_MB / steady_s * per_h, 3),
        steady_s=round(steady_s, 1),
        blocks=found.blocks,
        medians_mb=[round(median, 2) for median in found.medians],
    )


def steady(seen: list[Seen], begin: float, end: float) -> tuple[list[float], list[float]]:
    """Times and resident bytes of the looks between two times."""
    inside = [s for s in seen if begin <= s.at <= end and s.usage is not None]
    sizes = [float(s.usage.rss_bytes) for s in inside if s.usage is not None]
    return [s.at for s in inside], sizes


def returned(seen: list[Seen], before: Seen, after: Seen) -> list[Back]:
    """Every count that must be back. Those that a server does not tell are left out."""
    found = []
    for name in (*BACK_TO_ZERO, "tasks"):
        ends = before.named(PREFIX + name), after.named(PREFIX + name)
        values = [v for s in seen if (v := s.named(PREFIX + name)) is not None]
        if ends[0] is None or ends[1] is None or not values:
            continue
        allowed = ends[0] + TASKS_MORE if name == "tasks" else 0.0
        found.append(_back(name, ends[0], values, ends[1], allowed))
    assert before.usage is not None
    assert after.usage is not None
    first, last = before.usage.descriptors or 0, after.usage.descriptors or 0
    open_ = [float(s.usage.descriptors or 0) for s in seen if s.usage is not None]
    found.append(_back("descriptors", first, open_, last, first + DESCRIPTORS_MORE))
    return found


def _back(name: str, before: float, values: list[float], after: float, allowed: float) -> Back:
    return Back(name=name, before=before, peak=max(values), after=after, allowed=allowed)


class Soak(msgspec.Struct, kw_only=True):
    """The whole of it. churn: what came beside the loads, by kind. problems: of the ledgers.

    busy: loads in which the client or the machine was the limit. They put a backlog into the
    gateway, and a burst's memory is not all given back: their steps look like a slope.
    """

    seconds: float
    samples: int
    survived: int
    lost: int
    doubled: int
    injected: int
    abandoned: int
    churn: dict[str, int]
    memory: Memory
    counts: list[Back]
    busy: list[str] = []
    problems: list[str] = []

    def all_problems(self) -> list[str]:
        """What speaks against it; empty where it is passed."""
        found = list(self.problems)
        if self.lost:
            found.append(f"{self.lost} lost")
        if self.doubled:
            found.append(f"{self.doubled} doubled")
        if not self.memory.ok:
            found.append(
                f"the memory rises by {self.memory.low_mb_per_h:.2f} MB/h at least; the bound is"
                f" {self.memory.bound_mb_per_h:.2f}"
            )
        found += [
            f"{count.name} is {count.after:g} after the load, {count.before:g} before it"
            for count in self.counts
            if not count.ok
        ]
        return found


def slope_of(rss: Memory) -> str:
    """In words."""
    return (
        f"{rss.mb_per_h:+.2f} MB/h, 95% interval {rss.low_mb_per_h:+.2f} to"
        f" {rss.high_mb_per_h:+.2f}; told from {rss.bound_mb_per_h:.2f}"
        f" ({rss.steady_s:,.0f} s, {rss.blocks} blocks)"
    )


def table(soak: Soak) -> list[str]:
    """As markdown, with the verdict."""
    rss, problems = soak.memory, soak.all_problems()
    rows = [
        (
            "took",
            f"{soak.seconds:,.0f} s, {soak.samples:,} samples, {soak.survived:,} as they should",
        ),
        ("faults injected, polls given up", f"{soak.injected:,}, {soak.abandoned:,}"),
        *((f"beside them: {kind}", f"{count:,}") for kind, count in soak.churn.items()),
        ("loads that the machine held up", str(len(soak.busy))),
        ("lost, doubled", f"{soak.lost}, {soak.doubled}"),
        ("memory", slope_of(rss)),
        ("memory, first and last block", f"{rss.medians_mb[0]:.1f}, {rss.medians_mb[-1]:.1f} MB"),
        *(
            (
                count.name,
                f"{count.before:g} before, {count.peak:,.0f} at most, {count.after:g} after"
                + ("" if count.ok else " FAILED"),
            )
            for count in soak.counts
        ),
    ]
    lines = ["| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    lines += ["", *(f"FAILED: {problem}" for problem in problems)]
    return [*lines, "passed" if not problems else "not passed"]
