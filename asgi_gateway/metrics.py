"""Counters, gauges and histograms as plain numbers, and their Prometheus text."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

PREFIX: Final = "asgi_gateway_"

# In line, at the upstream, settled and not yet delivered.
STAGES: Final = ("queued", "upstream", "deliver")

# Upper bounds in seconds, from a short answer's time to more than an hour: RL samples run for many
# minutes and wait in line for as long.
BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 4800.0),
)

Samples = Iterable[tuple[Mapping[str, str], float]]
# Value of the label, number.
Labelled = Iterable[tuple[str, float]]
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


class Metrics:
    """Hot paths add to the counters; gauges are read from their owners when scraped."""

    def __init__(self) -> None:
        # Keys are label values; each set is small and fixed by the code that counts. Adding to a
        # collections.Counter costs twice as much.
        self.samples = _counts("succeeded", "failed", "cancelled", "gone")
        self.polls = _counts("ready", "pending", "gone", "completions", "none", "abandoned")
        self.refusals = _counts("429", "503")
        self.upstream = _counts(
            *(
                "ok",
                "cancelled",
                "aborted",
                "bug",
                "unavailable",
                "interrupted",
                "enginefault",
                "rejected",
            ),
            *("unreadable", "missinglogprobs"),
        )
        self.retries = _counts("unavailable", "engine_fault", "interrupted", "stale_connection")
        self.closed = _counts(
            *("silent", "header_timeout", "body_timeout", "write_timeout", "head_too_large"),
            *("malformed", "pipelined", "unread_body", "connections", "connections_per_address"),
            "foreign_name",
        )
        self._by_stage = {name: Histogram() for name in STAGES}
        self.sample_duration = Histogram()
        self.bugs = 0
        self.evicted_for_room = 0
        self._read: list[tuple[str, str, str, Callable[[], float]]] = []
        self._labelled: list[tuple[str, str, str, str, Callable[[], Labelled]]] = []
        self._summaries: list[tuple[str, str, str, Callable[[], Sums]]] = []

    def stage(self, name: str, seconds: float) -> None:
        """One sample has left a stage after so long."""
        self._by_stage[name].observe(seconds)

    def timings(self) -> Iterable[tuple[str, Histogram]]:
        """The histograms of samples, by what they time."""
        yield from self._by_stage.items()
        yield "accept to settlement", self.sample_duration

    def gauge(
        self, name: str, text: str, read: Callable[[], float], *, prefix: str = PREFIX
    ) -> None:
        """A number that its owner has, read when scraped."""
        self._read.append((prefix + name, "gauge", text, read))

    def counter(
        self, name: str, text: str, read: Callable[[], float], *, prefix: str = PREFIX
    ) -> None:
        """The same, of what only grows."""
        self._read.append((prefix + name, "counter", text, read))

    def labelled(
        self, name: str, kind: str, text: str, label: str, read: Callable[[], Labelled]
    ) -> None:
        """Gauges or counters by one label, whose values come from the configuration only."""
        self._labelled.append((name, kind, text, label, read))

    def summary(self, name: str, text: str, label: str, read: Callable[[], Sums]) -> None:
        """Sums and counts by one label, read when scraped."""
        self._summaries.append((name, text, label, read))

    def render(self) -> bytes:
        """The text exposition, format 0.0.4."""
        lines: list[str] = []
        for name, kind, text, read in self._read:
            _family(lines, name, kind, text, [({}, read())])
        for name, kind, text, label, read_all in self._labelled:
            _family(lines, PREFIX + name, kind, text, [({label: key}, n) for key, n in read_all()])
        counters: tuple[tuple[str, str, str, dict[str, int]], ...] = (
            ("samples_total", "Samples settled, by outcome.", "outcome", self.samples),
            ("polls_total", "Polls answered, by result.", "result", self.polls),
            ("admission_rejected_total", "Submits refused, by status.", "reason", self.refusals),
            ("upstream_requests_total", "Upstream requests, by outcome.", "code", self.upstream),
            ("retries_total", "Samples sent upstream again, by reason.", "reason", self.retries),
            ("connections_closed_total", "Of clients at fault, by reason.", "reason", self.closed),
        )
        for name, text, label, counter in counters:
            values = [({label: key}, n) for key, n in sorted(counter.items())]
            _family(lines, PREFIX + name, "counter", text, values)
        for name, text, number in (
            ("evicted_for_room_total", "Results dropped early.", self.evicted_for_room),
            ("bugs_total", "Faults inside the gateway.", self.bugs),
        ):
            _family(lines, PREFIX + name, "counter", text, [({}, number)])
        name = f"{PREFIX}stage_seconds"
        _family(lines, name, "histogram", "Time of samples in each stage.", ())
        for stage, histogram in self._by_stage.items():
            _histogram(lines, name, f'stage="{stage}",', histogram)
        name = f"{PREFIX}sample_duration_seconds"
        _family(lines, name, "histogram", "From accept to settlement.", ())
        _histogram(lines, name, "", self.sample_duration)
        for name, text, label, sums in self._summaries:
            name = PREFIX + name
            _family(lines, name, "summary", text, ())
            for value, total, count in sums():
                lines.append(f'{name}_sum{{{label}="{value}"}} {total}')
                lines.append(f'{name}_count{{{label}="{value}"}} {count}')
        return ("\n".join(lines) + "\n").encode()


def _counts(*names: str) -> dict[str, int]:
    """Counters by label value, there from the start: a rate needs a first sample to begin from."""
    return defaultdict(int, dict.fromkeys(names, 0))


def _family(lines: list[str], name: str, kind: str, text: str, values: Samples) -> None:
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")
    for labels, value in values:
        shown = ",".join(f'{key}="{val}"' for key, val in labels.items())
        # Exactly: %g keeps six digits, and a counter above a million would stand still and jump.
        lines.append(f"{name}{{{shown}}} {value}" if shown else f"{name} {value}")


def _histogram(lines: list[str], name: str, labels: str, histogram: Histogram) -> None:
    """labels: those before `le`, each with a comma after it."""
    total = 0
    for bound, count in zip((*BUCKETS_S, "+Inf"), histogram.buckets, strict=True):
        total += count
        lines.append(f'{name}_bucket{{{labels}le="{bound}"}} {total}')
    shown = f"{{{labels[:-1]}}}" if labels else ""
    lines.append(f"{name}_sum{shown} {histogram.seconds}")
    lines.append(f"{name}_count{shown} {total}")
