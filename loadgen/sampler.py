"""The server from outside, once a second: /proc of its processes, and /metrics where it has them.

What was not there is None in every column. Names are those of asgi_gateway; a server with others
has its series in `metrics` and `moved` all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from loadgen.address import Address, address
from loadgen.procfs import Usage, tree, usage_of_tree
from loadgen.prometheus import is_counter, parse, total
from loadgen.results import Series, Server
from loadgen.standin import StandInError, ask

EVERY_S: Final = 1.0
ROWS_CAP: Final = 100_000

IN_FLIGHT: Final = ("asgi_gateway_samples_inflight",)
LAG_S: Final = ("asgi_gateway_event_loop_lag_seconds",)
LAG_MAX_S: Final = ("asgi_gateway_event_loop_lag_seconds_max",)
COLLECTIONS: Final = ("asgi_gateway_gc_pause_seconds_count", "python_gc_collections_total")
PAUSES_S: Final = ("asgi_gateway_gc_pause_seconds_sum",)
PAUSE_MAX_S: Final = ("asgi_gateway_gc_pause_seconds_max",)

Column = list[float | None]


class Seen(NamedTuple):
    """One look. `at` is of the monotonic clock, which all processes share."""

    at: float
    usage: Usage | None
    metrics: dict[str, float] | None

    def named(self, *names: str) -> float | None:
        return None if self.metrics is None else total(self.metrics, *names)


class Sampler:
    """Looks once a second as long as `run` is awaited. pid: None where it is not known."""

    def __init__(self, pid: int | None, url: str | None, *, every_s: float = EVERY_S) -> None:
        """url: the server's, whose /metrics is read; None for none. ValueError for a bad one."""
        self._pid = pid
        self._where: Address | None = None if url is None else address(url)
        self._every_s = every_s
        self.seen: list[Seen] = []

    def __repr__(self) -> str:
        return f"<Sampler of {self._pid}, {len(self.seen)} rows>"

    async def run(self) -> None:
        """Until cancelled; a look that takes long puts off the next one, it does not pile up."""
        due = time.monotonic()
        while True:
            await self.look()
            due = max(due + self._every_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def look(self) -> Seen:
        """One row more."""
        metrics = await self._metrics()
        usage = None if self._pid is None else usage_of_tree(self._pid)
        seen = Seen(time.monotonic(), usage, metrics)
        if len(self.seen) < ROWS_CAP:
            self.seen.append(seen)
        return seen

    async def _metrics(self) -> dict[str, float] | None:
        if self._where is None:
            return None
        try:
            text = await ask(self._where, b"GET /metrics")
        except StandInError:
            return None  # it has none, or is gone; the rows before stay
        return parse(text.decode("utf-8", "replace")) or None

    # --- columns --------------------------------------------------------------------------------

    def fill(self, series: Series, start: float) -> None:
        """Put the server's columns beside the others; a row is the second up to start + t."""
        edges = [start + t for t in series.t]
        series.server_cpu = self._rates(edges, lambda seen: seen.usage and seen.usage.cpu_s)
        series.server_rss = self._levels(edges, lambda seen: seen.usage and seen.usage.rss_bytes)
        series.server_descriptors = self._levels(
            edges, lambda seen: seen.usage and seen.usage.descriptors
        )
        series.server_threads = self._levels(edges, lambda seen: seen.usage and seen.usage.threads)
        series.server_gc = self._rates(edges, lambda seen: seen.named(*COLLECTIONS))
        series.server_in_flight = self._levels(edges, lambda seen: seen.named(*IN_FLIGHT))
        series.server_lag_ms = [
            None if lag is None else lag * 1000
            for lag in self._levels(edges, lambda seen: seen.named(*LAG_S))
        ]

    def _levels(self, edges: list[float], read: Callable[[Seen], float | None]) -> Column:
        """The last value seen by each edge, None where none was seen within two looks before it."""
        known = [(seen.at, value) for seen in self.seen if (value := read(seen)) is not None]
        times = np.array([at for at, _ in known])
        places = np.searchsorted(times, edges, side="right") - 1
        return [
            known[place][1] if place >= 0 and edge - times[place] <= 2 * self._every_s else None
            for edge, place in zip(edges, places.tolist(), strict=True)
        ]

    def _rates(self, edges: list[float], read: Callable[[Seen], float | None]) -> Column:
        """The rise in the second before each edge, by interpolation between the looks around it."""
        known = [(seen.at, value) for seen in self.seen if (value := read(seen)) is not None]
        if len(known) < 2:
            return [None] * len(edges)
        times, values = (np.array(column) for column in zip(*known, strict=True))
        ends = np.array(edges)
        rises = np.interp(ends, times, values) - np.interp(ends - 1, times, values)
        inside = (ends - 1 >= times[0] - self._every_s) & (ends <= times[-1] + self._every_s)
        return [
            round(float(rise), 4) if within else None
            for rise, within in zip(rises, inside.tolist(), strict=True)
        ]

    def server(self, samples: int) -> Server:
        """All that a Server has of this; `busy`, `starved` and healthz are for others to set."""
        found = Server(pids=[] if self._pid is None else tree(self._pid))
        usages = [seen.usage for seen in self.seen if seen.usage is not None]
        if usages:
            found.cpu_s = round(usages[-1].cpu_s - usages[0].cpu_s, 3)
            found.cpu_ms_per_sample = round(found.cpu_s / samples * 1000, 4)
            found.rss_before, found.rss_after = usages[0].rss_bytes, usages[-1].rss_bytes
            found.rss_peak = max(usage.rss_bytes for usage in usages)
            found.bytes_per_sample = round((found.rss_peak - found.rss_before) / samples, 1)
            open_ = [usage.descriptors for usage in usages if usage.descriptors is not None]
            found.descriptors_peak = max(open_, default=None)
        self._add_metrics(found)
        return found

    def _add_metrics(self, found: Server) -> None:
        told = [seen for seen in self.seen if seen.metrics is not None]
        if not told:
            return
        lags = [lag * 1000 for seen in told if (lag := seen.named(*LAG_S)) is not None]
        if lags:
            found.lag_p99_ms = round(float(np.percentile(lags, 99)), 3)
        longest = [*lags, *_risen(told, LAG_MAX_S)]
        if longest:
            found.lag_max_ms = round(max(longest), 3)
        flying = [n for seen in told if (n := seen.named(*IN_FLIGHT)) is not None]
        if flying:
            found.in_flight_peak, found.left_behind = int(max(flying)), int(flying[-1])
        collections = [n for seen in told if (n := seen.named(*COLLECTIONS)) is not None]
        if collections:
            found.gc_collections = int(collections[-1] - collections[0])
        paused = [s for seen in told if (s := seen.named(*PAUSES_S)) is not None]
        if paused:
            found.gc_pause_s = round(paused[-1] - paused[0], 6)
        # What did not rise is of a time before the run, which tells nothing of it.
        found.gc_pause_max_ms = max(_risen(told, PAUSE_MAX_S), default=None)
        first, last = told[0].metrics or {}, told[-1].metrics or {}
        found.metrics = last
        found.moved = {
            name: value - first.get(name, 0.0)
            for name, value in last.items()
            if is_counter(name) and value != first.get(name, 0.0)
        }


def _risen(told: list[Seen], names: tuple[str, ...]) -> list[float]:
    """A maximum since the server's start in ms, where it rose during the run; else nothing."""
    found = [s for seen in told if (s := seen.named(*names)) is not None]
    return [round(found[-1] * 1000, 3)] if found and found[-1] > found[0] else []


def starved(seen: list[Seen], start: float, end: float) -> float | None:
    """Share of a stretch that the server was ready to run and did not; None where not measured."""
    inside = [s for s in seen if start <= s.at <= end and s.usage is not None]
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    assert first.usage is not None
    assert last.usage is not None
    waited_s = last.usage.waited_s - first.usage.waited_s
    return round(waited_s / (last.at - first.at), 4)
