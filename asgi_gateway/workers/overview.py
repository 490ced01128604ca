"""`/admin/state` of several workers as one: sums, the worst of them, and the newest of all."""

import asyncio
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from asgi_gateway.admin.messages import Holder, Overview, Timing, UpstreamShown

HOLDERS: Final = 20
RECENT: Final = 50
_OVERVIEW: Final = msgspec.json.Decoder(Overview)


async def together(own: bytes, others: Sequence[bytes], count: int) -> bytes:
    """own: of the worker that was asked. count: how many there should be.

    What the dead had counted is not in it.
    """
    overviews = [_OVERVIEW.decode(own)]
    for text in others:
        await asyncio.sleep(0)
        overviews.append(_OVERVIEW.decode(text))
    return msgspec.json.encode(_sum(overviews, count))


def _sum(all_: Sequence[Overview], count: int) -> Overview:
    return replace(
        all_[0],
        workers=count,
        workers_answered=len(all_),
        # Of the youngest: when one of them began anew, so did its counts.
        up_s=min(one.up_s for one in all_),
        ready=all(one.ready for one in all_),
        reasons=list(dict.fromkeys(reason for one in all_ for reason in one.reasons)),
        draining=any(one.draining for one in all_),
        samples=_added(one.samples for one in all_),
        outcomes=_added(one.outcomes for one in all_),
        refusals=_added(one.refusals for one in all_),
        retries=_added(one.retries for one in all_),
        polls=sum(one.polls for one in all_),
        sessions=sum(one.sessions for one in all_),
        bytes_charged=sum(one.bytes_charged for one in all_),
        bytes_limit=sum(one.bytes_limit for one in all_),
        results_bytes=sum(one.results_bytes for one in all_),
        loop_lag_s=max(one.loop_lag_s for one in all_),
        loop_lag_max_s=max(one.loop_lag_max_s for one in all_),
        timings=_timings(all_),
        upstreams=_upstreams(all_),
        holders=_holders(all_),
        recent=sorted((n for one in all_ for n in one.recent), key=lambda n: n.time, reverse=True)[
            :RECENT
        ],
    )


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _timings(all_: Sequence[Overview]) -> dict[str, Timing]:
    total: dict[str, Timing] = {}
    for one in all_:
        for name, timing in one.timings.items():
            before = total.get(name)
            if before is not None:
                counts = [sum(pair) for pair in zip(before.counts, timing.counts, strict=True)]
                timing = Timing(counts, before.seconds + timing.seconds)
            total[name] = timing
    return total


def _upstreams(all_: Sequence[Overview]) -> list[UpstreamShown]:
    """What is wrong with one for any of them is shown."""
    total: dict[str, UpstreamShown] = {}
    for one in all_:
        for upstream in one.upstreams:
            before = total.get(upstream.name)
            if before is None:
                total[upstream.name] = upstream
                continue
            worse = before if before.state != "up" else upstream
            total[upstream.name] = replace(
                worse,
                in_flight=before.in_flight + upstream.in_flight,
                draining=before.draining or upstream.draining,
            )
    return list(total.values())


def _holders(all_: Sequence[Overview]) -> list[Holder]:
    """A sampling session may have samples in several of them."""
    total: dict[str, Holder] = {}
    for one in all_:
        for holder in one.holders:
            known = total.setdefault(holder.sampling_session_id, holder)
            if known is holder:
                continue
            known.caller, known.model = known.caller or holder.caller, known.model or holder.model
            known.alive_s = min(known.alive_s, holder.alive_s)
            for name in ("queued", "running", "succeeded", "failed", "bytes"):
                setattr(known, name, getattr(known, name) + getattr(holder, name))
    return heapq.nlargest(
        HOLDERS, total.values(), key=lambda h: h.queued + h.running + h.succeeded + h.failed
    )
