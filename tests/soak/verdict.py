"""Whether a soak was passed: the slope of the memory, and counts that are back."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from loadgen.report.slope import Slope, slope
from loadgen.sampler import Seen
from tests.soak.watched import Rest

NOISE_MB: Final = 2.0
"""Less than this over the steady part is not told from the allocator's noise."""

DESCRIPTORS_MORE: Final = 2
"""What a logger or an event loop may have opened since the start."""

TASKS_MORE: Final = 2
BLOCKS_NOISE: Final = 2_000
"""Caches by sizes and lengths that still fill, counters that grew past 255."""

CHURN: Final = (
    "sessions",
    "samples cancelled",
    "polls given up",
    "sessions finished",
    "sessions left to lapse",
)
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
BACK_TO_BEFORE: Final = ("sessions", "samples_lost")
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
    """Every count that must be back. Raises LookupError for one that the gateway does not tell."""
    found = []
    for name in (*BACK_TO_ZERO, *BACK_TO_BEFORE, "tasks"):
        first, last = before.named(PREFIX + name), after.named(PREFIX + name)
        values = [v for s in seen if (v := s.named(PREFIX + name)) is not None]
        if first is None or last is None or not values:
            raise LookupError(f"the gateway does not tell {name}")
        allowed = 0.0 if name in BACK_TO_ZERO else first
        found.append(_back(name, first, values, last, allowed + TASKS_MORE * (name == "tasks")))
    assert before.usage is not None
    assert after.usage is not None
    was, now = before.usage.descriptors, after.usage.descriptors
    if not was or not now:
        raise LookupError("descriptors cannot be counted")
    open_ = [float(s.usage.descriptors or 0) for s in seen if s.usage is not None]
    found.append(_back("descriptors", was, open_, now, was + DESCRIPTORS_MORE))
    return found


def _back(name: str, before: float, values: list[float], after: float, allowed: float) -> Back:
    return Back(name=name, before=before, peak=max(values), after=after, allowed=allowed)


class Kept(msgspec.Struct, kw_only=True):
    """What the gateway holds at rest, all garbage gone, after the first part and at the end; so
    many samples lie between."""

    samples: int
    blocks_before: int
    blocks_after: int
    rss_mb_before: float
    rss_mb_after: float

    @property
    def per_thousand(self) -> float:
        """Blocks of the interpreter that stay of a thousand samples."""
        return 1000 * (self.blocks_after - self.blocks_before) / self.samples

    @property
    def ok(self) -> bool:
        """One object of a thousand samples is a leak."""
        return self.blocks_after - self.blocks_before <= BLOCKS_NOISE + self.samples / 1000


def kept(first: tuple[int, Rest], last: tuple[int, Rest]) -> Kept:
    """Each: samples so far, and what was held then."""
    return Kept(
        samples=last[0] - first[0],
        blocks_before=first[1].blocks,
        blocks_after=last[1].blocks,
        rss_mb_before=round(first[1].rss_mb, 2),
        rss_mb_after=round(last[1].rss_mb, 2),
    )


class Soak(msgspec.Struct, kw_only=True):
    """The whole of it. rate: of samples, a second. churn: what came beside the loads, by kind.
    problems: of the ledgers.

    busy: loads in which the client or the machine was the limit. They put a backlog into the
    gateway, and a burst's memory is not all given back: their steps look like a slope.
    """

    seconds: float
    rate: float
    samples: int
    survived: int
    lost: int
    doubled: int
    injected: int
    abandoned: int
    churn: dict[str, int]
    memory: Memory
    kept: Kept
    counts: list[Back]
    busy: list[str] = []
    problems: list[str] = []

    def all_problems(self) -> list[str]:
        """What speaks against it; empty where it is passed."""
        found = list(self.problems)
        if self.survived != self.samples:
            found.append(f"{self.survived} of {self.samples} samples ended as they should")
        found += [
            f"{what} did not happen, so nothing of it was tested"
            for what, count in (
                ("faults", self.injected),
                ("abandoned polls", self.abandoned),
                *((kind, self.churn.get(kind, 0)) for kind in CHURN),
            )
            if not count
        ]
        if not self.kept.ok:
            found.append(
                f"{self.kept.per_thousand:.2f} blocks of the interpreter stay of a thousand samples"
            )
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


def bytes_per_sample(rss: Memory, rate: float) -> float:
    """From how much that stays of each sample on, the slope would have told it."""
    return (rss.bound_mb_per_h + rss.mb_per_h - rss.low_mb_per_h) * 1e6 / (3600 * rate)


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
        ("a leak would show from", f"{bytes_per_sample(rss, soak.rate):.0f} bytes a sample"),
        (
            "blocks of the interpreter at rest",
            f"{soak.kept.blocks_before:,} before, {soak.kept.blocks_after:,} after",
        ),
        (
            "blocks that stay",
            f"{soak.kept.per_thousand:+.2f} of a thousand samples, of {soak.kept.samples:,}",
        ),
        (
            "memory at rest",
            f"{soak.kept.rss_mb_before:.1f} before, {soak.kept.rss_mb_after:.1f} MB after them",
        ),
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
