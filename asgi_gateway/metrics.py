"""Counters, gauges and histograms as plain numbers, and their Prometheus text.

Each family is registered once, with the text that the reference shows; its numbers are read from
whoever has them when it is scraped.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

PREFIX: Final = "asgi_gateway_"
# The value of a label that stands for all that are not known beforehand.
OTHER: Final = "other"

# In line, at the upstream, settled and not yet delivered.
STAGES: Final = ("queued", "upstream", "deliver")

# Upper bounds in seconds, from the gateway's own work on one answer to more than an hour: RL
# samples run for many minutes and wait in line for as long.
BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 4800.0),
)
_LE: Final = (*(str(bound) for bound in BUCKETS_S), "+Inf")

# Values of the labels, in their order, and the number.
Labelled = Iterable[tuple[tuple[str, ...], float]]
# Value of the label, sum, count.
Sums = Iterable[tuple[str, float, int]]


class Histogram:
    """Durations by BUCKETS_S, their sum in seconds and their count."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        # Of each bucket alone, the one beyond the last bound included; summed up when rendered.
        self.buckets = [0] * (len(BUCKETS_S) + 1)

    def observe(self, seconds: float) -> None:
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1


class Counts(defaultdict[str, int]):
    """Counters by label value, there from the start: a rate needs a first sample to begin from.

    Adding to a collections.Counter costs twice as much.
    """

    def __init__(self, *names: str) -> None:
        super().__init__(int, dict.fromkeys(names, 0))
        self._names = names

    def shown(self) -> list[tuple[str, int]]:
        """Always the same values: what was counted under a name that is not one of them is
        `other`."""
        known = [(name, self[name]) for name in self._names]
        return [*known, (OTHER, sum(self.values()) - sum(n for _, n in known))]


class Family(NamedTuple):
    """What the reference says of one metric. kind: counter, gauge, histogram or summary."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


class Metrics:
    """Hot paths add to the counters; gauges are read from their owners when scraped."""

    def __init__(self) -> None:
        self.samples = Counts("succeeded", "failed", "cancelled", "gone")
        self.polls = Counts("ready", "pending", "gone", "completions", "none", "abandoned")
        self.refusals = Counts(
            *("in_flight", "bytes", "memory", "upstreams", "store", "drain"),
            *("key_in_flight", "key_rate"),
        )
        self.retries = Counts("unavailable", "engine_fault", "interrupted", "stale_connection")
        self.closed = Counts(
            *("silent", "header_timeout", "body_timeout", "write_timeout", "head_too_large"),
            *("malformed", "pipelined", "unread_body", "connections", "connections_per_address"),
            "foreign_name",
        )
        self._by_stage = {name: Histogram() for name in STAGES}
        self.sample_duration = Histogram()
        self.overhead = Histogram()
        self.bugs = 0
        self.evicted_for_room = 0
        self.unfetched = 0
        # What a scrape is answered with: of all processes, where there are several.
        self.exposition: Callable[[], Awaitable[bytes]] = self._of_this_process
        # With what writes the lines of each.
        self._families: dict[str, tuple[Family, Callable[[list[str]], None]]] = {}
        self._add_own()

    def stage(self, name: str, seconds: float) -> None:
        """One sample has left a stage after so long."""
        self._by_stage[name].observe(seconds)

    def timings(self) -> Iterable[tuple[str, Histogram]]:
        """The histograms of samples, by what they time."""
        yield from self._by_stage.items()
        yield "accept to settlement", self.sample_duration

    @property
    def families(self) -> list[Family]:
        """All that is registered, by name."""
        return sorted(family for family, _ in self._families.values())

    # --- registering -----------------------------------------------------------------------------

    def gauge(
        self, name: str, text: str, read: Callable[[], float], *, prefix: str = PREFIX
    ) -> None:
        """A number that its owner has, read when scraped."""
        self._number(prefix + name, "gauge", text, read)

    def counter(
        self, name: str, text: str, read: Callable[[], float], *, prefix: str = PREFIX
    ) -> None:
        """The same, of what only grows."""
        self._number(prefix + name, "counter", text, read)

    def labelled(
        self, name: str, kind: str, text: str, labels: tuple[str, ...], read: Callable[[], Labelled]
    ) -> None:
        """Gauges or counters by labels, whose values are fixed by the code or the configuration."""
        full = PREFIX + name

        def write(lines: list[str]) -> None:
            for values, number in read():
                pairs = zip(labels, values, strict=True)
                shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)
                lines.append(f"{full}{{{shown}}} {shown_number(number)}")

        self._add(Family(full, kind, text, labels), write)

    def counts(self, name: str, text: str, label: str, counts: Counts) -> None:
        """Counters that are there for each value of a label."""
        self.labelled(
            name, "counter", text, (label,), lambda: [((key,), n) for key, n in counts.shown()]
        )

    def summary(self, name: str, text: str, label: str, read: Callable[[], Sums]) -> None:
        """Sums and counts by one label, read when scraped."""
        full = PREFIX + name

        def write(lines: list[str]) -> None:
            for value, total, count in read():
                lines.append(f'{full}_sum{{{label}="{value}"}} {total}')
                lines.append(f'{full}_count{{{label}="{value}"}} {count}')

        self._add(Family(full, "summary", text, (label,)), write)

    def histogram(self, name: str, text: str, histogram: Histogram) -> None:
        full = PREFIX + name
        family = Family(full, "histogram", text, ())
        self._add(family, lambda lines: _histogram(lines, full, "", histogram))

    def _add_own(self) -> None:
        self.counts(
            "samples_total",
            "Samples settled, by outcome; gone: handed back to the client, whose SDK submits it"
            " again, or dropped with its session.",
            "outcome",
            self.samples,
        )
        self.histogram(
            "sample_duration_seconds",
            "Time of a sample from accept to settlement.",
            self.sample_duration,
        )
        name = f"{PREFIX}stage_seconds"
        text = "Time of a sample in each stage, once a sample however often it was tried."
        self._add(Family(name, "histogram", text, ("stage",)), self._write_stages)
        self.histogram(
            "overhead_seconds",
            "The gateway's own time on a result: from the upstream's whole answer to settlement.",
            self.overhead,
        )
        self.counts("polls_total", "Polls answered, by what they found.", "result", self.polls)
        self.counts(
            "admission_rejected_total",
            "Submits refused for now (429 and 503, which the SDK repeats), by what refused them.",
            "reason",
            self.refusals,
        )
        self.counts(
            "retries_total", "Samples sent upstream again, by what failed.", "reason", self.retries
        )
        self.counts(
            "connections_closed_total",
            "Connections that serve ended for a fault of the client, by fault.",
            "reason",
            self.closed,
        )
        self.counter(
            "evicted_for_room_total",
            "Results dropped before their time to make room; delivered ones go first.",
            lambda: self.evicted_for_room,
        )
        self.counter(
            "results_unfetched_total",
            "Results dropped because no poll came for them within store.completed_ttl_s.",
            lambda: self.unfetched,
        )
        self.counter(
            "bugs_total", "Internal errors, each with a stack in the log.", lambda: self.bugs
        )

    def _number(self, name: str, kind: str, text: str, read: Callable[[], float]) -> None:
        family = Family(name, kind, text, ())
        self._add(family, lambda lines: lines.append(f"{name} {shown_number(read())}"))

    def _add(self, family: Family, write: Callable[[list[str]], None]) -> None:
        if family.name in self._families:
            raise ValueError(f"{family.name} is registered already")
        self._families[family.name] = (family, write)

    # --- text ------------------------------------------------------------------------------------

    def render(self) -> bytes:
        """The text exposition, format 0.0.4."""
        lines: list[str] = []
        for family, write in self._families.values():
            lines.append(f"# HELP {family.name} {family.text}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            write(lines)
        return ("\n".join(lines) + "\n").encode()

    async def _of_this_process(self) -> bytes:
        return self.render()

    def _write_stages(self, lines: list[str]) -> None:
        for stage, histogram in self._by_stage.items():
            _histogram(lines, f"{PREFIX}stage_seconds", f'stage="{stage}",', histogram)


def shown_number(number: float) -> str:
    """Exactly: %g keeps six digits, and a counter above a million would stand still and jump."""
    if math.isfinite(number):
        return str(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _histogram(lines: list[str], name: str, labels: str, histogram: Histogram) -> None:
    """labels: those before `le`, each with a comma after it."""
    total = 0
    for bound, count in zip(_LE, histogram.buckets, strict=True):
        total += count
        lines.append(f'{name}_bucket{{{labels}le="{bound}"}} {total}')
    shown = f"{{{labels[:-1]}}}" if labels else ""
    lines.append(f"{name}_sum{shown} {histogram.seconds}")
    lines.append(f"{name}_count{shown} {total}")
