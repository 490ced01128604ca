"""Counters and gauges as plain integers, and their Prometheus text."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

PREFIX: Final = "asgi_gateway_"

# In line, at the upstream, settled and not yet delivered.
STAGES: Final = ("queued", "upstream", "deliver")

Samples = Iterable[tuple[Mapping[str, str], float]]
# Value of the label, number.
Labelled = Iterable[tuple[str, float]]
# Value of the label, sum, count.
Sums = Iterable[tuple[str, float, int]]


class Stage:
    """Seconds spent in one stage, and how many samples spent them."""

    __slots__ = ("samples", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.samples = 0


class Metrics:
    """Hot paths add to the counters; gauges are read from their owners when scraped."""

    def __init__(self) -> None:
        # Keys are label values; each set is small and fixed by the code that counts. Adding to a
        # collections.Counter costs twice as much.
        self.samples: dict[str, int] = defaultdict(int)
        self.polls: dict[str, int] = defaultdict(int)
        self.refusals: dict[str, int] = defaultdict(int)
        self.upstream: dict[str, int] = defaultdict(int)
        self.retries: dict[str, int] = defaultdict(int)
        self._by_stage = {name: Stage() for name in STAGES}
        self.bugs = 0
        self.evicted_for_room = 0
        self._read: list[tuple[str, str, str, Callable[[], float]]] = []
        self._labelled: list[tuple[str, str, str, str, Callable[[], Labelled]]] = []
        self._summaries: list[tuple[str, str, str, Callable[[], Sums]]] = []
        self.summary("stage_seconds", "Time of samples in each stage.", "stage", self._stages)

    def stage(self, name: str, seconds: float) -> None:
        """One sample has left a stage after so long."""
        stage = self._by_stage[name]
        stage.seconds += seconds
        stage.samples += 1

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A number that its owner has, read when scraped."""
        self._read.append((name, "gauge", text, read))

    def counter(self, name: str, text: str, read: Callable[[], float]) -> None:
        """The same, of what only grows."""
        self._read.append((name, "counter", text, read))

    def labelled(
        self, name: str, kind: str, text: str, label: str, read: Callable[[], Labelled]
    ) -> None:
        """Gauges or counters by one label, whose values come from the configuration only."""
        self._labelled.append((name, kind, text, label, read))

    def summary(self, name: str, text: str, label: str, read: Callable[[], Sums]) -> None:
        """Sums and counts by one label, read when scraped."""
        self._summaries.append((name, text, label, read))

    def _stages(self) -> Sums:
        return ((name, stage.seconds, stage.samples) for name, stage in self._by_stage.items())

    def render(self) -> bytes:
        """The text exposition, format 0.0.4."""
        lines: list[str] = []
        for name, kind, text, read in self._read:
            _family(lines, name, kind, text, [({}, read())])
        for name, kind, text, label, read_all in self._labelled:
            _family(lines, name, kind, text, [({label: key}, n) for key, n in read_all()])
        counters: tuple[tuple[str, str, str, dict[str, int]], ...] = (
            ("samples_total", "Samples settled, by outcome.", "outcome", self.samples),
            ("polls_total", "Polls answered, by result.", "result", self.polls),
            ("admission_rejected_total", "Submits refused, by status.", "reason", self.refusals),
            ("upstream_requests_total", "Upstream requests, by outcome.", "code", self.upstream),
            ("retries_total", "Samples sent upstream again, by reason.", "reason", self.retries),
        )
        for name, text, label, counter in counters:
            values = [({label: key}, n) for key, n in sorted(counter.items())]
            _family(lines, name, "counter", text, values)
        for name, text, label, sums in self._summaries:
            _family(lines, name, "summary", text, ())
            for value, total, count in sums():
                lines.append(f'{PREFIX}{name}_sum{{{label}="{value}"}} {total}')
                lines.append(f'{PREFIX}{name}_count{{{label}="{value}"}} {count}')
        dropped: list[tuple[dict[str, str], float]] = [({}, self.evicted_for_room)]
        _family(lines, "evicted_for_room_total", "counter", "Results dropped early.", dropped)
        _family(lines, "bugs_total", "counter", "Faults inside the gateway.", [({}, self.bugs)])
        return ("\n".join(lines) + "\n").encode()


def _family(lines: list[str], name: str, kind: str, text: str, values: Samples) -> None:
    lines.append(f"# HELP {PREFIX}{name} {text}")
    lines.append(f"# TYPE {PREFIX}{name} {kind}")
    for labels, value in values:
        shown = ",".join(f'{key}="{val}"' for key, val in labels.items())
        # Exactly: %g keeps six digits, and a counter above a million would stand still and jump.
        lines.append(f"{PREFIX}{name}{{{shown}}} {value}" if shown else f"{PREFIX}{name} {value}")
