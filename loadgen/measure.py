"""From the merged ledger to what a result says: outcomes, stages, seconds, what came twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from loadgen.histogram import histogram
from loadgen.ledger import Merged
from loadgen.outcomes import Doubled, Outcomes
from loadgen.plan import Plan
from loadgen.results import FaultCount, Series, Stage
from loadgen.samples import Samples

Floats = npt.NDArray[np.float64]


class Hit:
    """The stand-in's record of request ids: how often asked, when first asked and last answered.

    Times are of the monotonic clock, 0.0 where it did not happen.
    """

    def __init__(self, ids: dict[str, tuple[int, float, float]]) -> None:
        self.ids = ids


def outcomes(merged: Merged) -> Outcomes:
    """What is open is lost."""
    counts = np.bincount(merged.outcome, minlength=len(merged.names)).tolist()
    by_name = dict(zip(merged.names, counts, strict=True))
    groups: dict[str, dict[str, int]] = {"failed": {}, "refused": {}, "wrong": {}}
    for name, count in by_name.items():
        group, dot, detail = name.partition(".")
        if dot:
            groups[group][detail] = count
    return Outcomes(succeeded=by_name["succeeded"], lost=by_name["open"], **groups)


def doubled(plan: Plan, merged: Merged, hits: Hit | None, *, excused: int = 0) -> Doubled:
    """What came twice. excused: repetitions upstream that injected faults explain."""
    issued = Counter(request_id for ids in merged.ids for request_id in ids)
    upstream = None
    if hits is not None:
        again = sum(hits.ids[i][0] - 1 for i in issued if i in hits.ids)
        upstream = max(0, again - excused)
    return Doubled(
        request_ids=sum(count - 1 for count in issued.values()),
        delivered=merged.delivered_again,
        results=_same_results(plan, merged),
        upstream=upstream,
    )


NOBODY: Final = "no sample"
"""Of faults that no request of this run met, such as a listener that was shut while none came."""


def attribute(
    faults: Sequence[FaultCount], merged: Merged, faulted: Mapping[str, Sequence[str]]
) -> None:
    """Set `seen` of each fault: the outcomes of the samples whose requests met it.

    faulted: kinds by request id. The counts of each kind sum to what was injected.
    """
    seen: dict[str, Counter[str]] = {fault.kind: Counter() for fault in faults}
    for number, ids in enumerate(merged.ids):
        for request_id in ids:
            for kind in faulted.get(request_id, ()):
                if kind in seen:
                    outcome = merged.names[merged.outcome[number]]
                    seen[kind]["lost" if outcome == "open" else outcome] += 1
    for fault in faults:
        fault.seen = dict(seen[fault.kind])
        if (rest := fault.injected - seen[fault.kind].total()) > 0:
            fault.seen[NOBODY] = rest


def _same_results(plan: Plan, merged: Merged) -> int:
    """Samples whose result another one of ours had, too.

    With an oracle only results of other samples have a digest, and the rightful owners' are made.
    """
    digests = merged.digest[merged.digest != 0]
    if plan.oracle:
        if not digests.size:
            return 0
        samples = Samples(plan)
        good = np.flatnonzero(merged.named("succeeded")).tolist()
        right = {samples.digest(number) for number in good}
        return sum(int(digest) in right for digest in digests)
    return int(digests.size - np.unique(digests).size)


def stages(plan: Plan, merged: Merged, hits: Hit | None) -> dict[str, Stage]:
    """See results.STAGES; only of what succeeded after the warm-up, without empty stages."""
    good = merged.named("succeeded")
    if plan.warmup_s and good.any():
        good &= merged.planned >= merged.planned.min() + plan.warmup_s
    told = good & (merged.accepted > 0)
    found = {
        "submit": _stage(told, merged.sent, merged.accepted, merged.planned),
        "fetch": _stage(good & (merged.fetched > 0), merged.fetched, merged.done),
        "e2e": _stage(good, merged.sent, merged.done, merged.planned),
    }
    if hits is not None:
        asked, answered = _times(merged, hits)
        known = good & (asked > 0) & (answered > 0)
        found["queue"] = _stage(known, merged.accepted, asked)
        found["upstream"] = _stage(known, asked, answered)
        found["deliver"] = _stage(known, answered, merged.done)
    return {name: stage for name, stage in found.items() if stage is not None}


def _stage(
    which: npt.NDArray[np.bool_], begin: Floats, end: Floats, planned: Floats | None = None
) -> Stage | None:
    uncorrected = histogram(end[which] - begin[which])
    if uncorrected is None:
        return None
    corrected = None if planned is None else histogram(end[which] - planned[which])
    return Stage(uncorrected=uncorrected, corrected=corrected)


def _times(merged: Merged, hits: Hit) -> tuple[Floats, Floats]:
    """When the upstream was asked for each sample's last id, and answered; 0.0 for never."""
    asked, answered = np.zeros(merged.count), np.zeros(merged.count)
    nothing = (0, 0.0, 0.0)
    for number, ids in enumerate(merged.ids):
        if ids:
            _, asked[number], answered[number] = hits.ids.get(ids[-1], nothing)
    return asked, answered


ROWS_CAP: Final = 100_000


def series(
    merged: Merged, start: float, end: float, progress: Sequence[tuple[float, int, float]]
) -> Series:
    """A row a second. progress: time, polls and client CPU so far, summed over the processes."""
    rows = min(int(end - start) + 1, ROWS_CAP)
    edges: Floats = start + np.arange(rows + 1, dtype=np.float64)
    settled = merged.done > 0
    accepted = np.sort(merged.accepted[merged.accepted > 0])
    done = np.sort(merged.done[settled])
    planned = np.sort(merged.planned[merged.planned > 0])
    through = np.sort(merged.done[settled & (merged.accepted > 0)])
    good = merged.named("succeeded")
    order = np.argsort(merged.done[good], kind="stable")
    ended, latencies = merged.done[good][order], (merged.done - merged.planned)[good][order] * 1000
    cuts = np.searchsorted(ended, edges)
    p50: list[float | None] = []
    p99: list[float | None] = []
    for low, high in pairwise(cuts):
        some = latencies[low:high]
        p50.append(round(float(np.percentile(some, 50)), 3) if some.size else None)
        p99.append(round(float(np.percentile(some, 99)), 3) if some.size else None)
    times = [at for at, _, _ in progress]
    polls = np.interp(edges, times, [n for _, n, _ in progress]) if times else np.zeros(rows + 1)
    cpu = np.interp(edges, times, [s for _, _, s in progress]) if times else None
    last = edges[1:]
    return Series(
        t=[float(second) for second in range(1, rows + 1)],
        planned=_per_second(planned, edges),
        accepted=_per_second(accepted, edges),
        completed=_per_second(done, edges),
        in_flight=(np.searchsorted(accepted, last) - np.searchsorted(through, last)).tolist(),
        polls=np.rint(np.diff(polls)).astype(int).tolist(),
        p50_ms=p50,
        p99_ms=p99,
        client_cpu=[None] * rows if cpu is None else np.round(np.diff(cpu), 3).tolist(),
    )


def _per_second(times: Floats, edges: Floats) -> list[int]:
    counts: list[int] = np.diff(np.searchsorted(times, edges)).tolist()
    return counts
