"""What a run shows while it goes on: a panel on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TextIO

from loadgen.report.extra import MissingExtra, needed
from loadgen.report.text import ABSENT, count, duration, rate, size

LINE_EVERY_S: Final = 5.0
COURSE: Final = 60
"""Seconds of throughput that the panel draws."""

BLOCKS: Final = " ▁▂▃▄▅▆▇█"
ASCII_BLOCKS: Final = " .:-=+*#@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run so far. Times in ms unless named otherwise, None where not measured.

    completed: samples with their outcome, bad ones too. bad: of those, by outcome. rate: samples a
    second since the last snapshot. Latencies are of the same stretch. cpu: cores in use.
    """

    elapsed_s: float
    samples: int
    accepted: int
    completed: int
    in_flight: int
    rate: float
    bad: dict[str, int] = field(default_factory=dict)
    phase: str = ""
    p50_ms: float | None = None
    p99_ms: float | None = None
    healthz_ms: float | None = None
    server_cpu: float | None = None
    server_rss: float | None = None
    client_cpu: float | None = None
    polls: int | None = None
    retries: int | None = None
    abandoned: int | None = None
    late: int | None = None


class Watcher(Protocol):
    """Who is shown the run. `say` is for what must not be missed, `show` for the course."""

    def show(self, snapshot: Snapshot) -> None: ...

    def say(self, text: str) -> None: ...


def left_s(snapshot: Snapshot) -> float | None:
    """Seconds to go at the mean rate so far; None before the first sample ended."""
    if not snapshot.completed or not snapshot.elapsed_s:
        return None
    left = snapshot.samples - snapshot.completed
    return left * snapshot.elapsed_s / snapshot.completed


def bad_words(snapshot: Snapshot) -> str:
    found = [f"{number:,} {name}" for name, number in sorted(snapshot.bad.items()) if number]
    return ", ".join(found) or "none bad"


def latency_words(snapshot: Snapshot) -> str:
    if snapshot.p50_ms is None and snapshot.p99_ms is None:
        return ABSENT
    return f"p50 {duration(snapshot.p50_ms)}, p99 {duration(snapshot.p99_ms)}"


class Quiet:
    """Only what must not be missed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, snapshot: Snapshot) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Lines(Quiet):
    """A line every so often, at once where the phase changes and at the end."""

    def __init__(self, stream: TextIO, every_s: float = LINE_EVERY_S) -> None:
        super().__init__(stream)
        self._every_s = every_s
        self._next_s = 0.0
        self._phase: str | None = None
        self._ended = False

    def show(self, snapshot: Snapshot) -> None:
        ended = snapshot.completed >= snapshot.samples and not self._ended
        if snapshot.elapsed_s < self._next_s and snapshot.phase == self._phase and not ended:
            return
        self._ended = self._ended or ended
        self._phase = snapshot.phase
        self._next_s = snapshot.elapsed_s + self._every_s
        self.say(line(snapshot))


def line(snapshot: Snapshot) -> str:
    parts = [
        f"{snapshot.elapsed_s:.0f} s {snapshot.phase}".rstrip(),
        f"{count(snapshot.completed)} of {count(snapshot.samples)} done",
        f"{count(snapshot.in_flight)} in flight",
        f"{rate(snapshot.rate)}/s",
        bad_words(snapshot),
    ]
    if snapshot.p99_ms is not None:
        parts.append(latency_words(snapshot))
    if snapshot.server_rss is not None:
        parts.append(f"server {size(snapshot.server_rss)}")
    return "; ".join(parts)


class Panel:
    """A panel that is drawn over itself, with rich. `closed` puts the terminal back."""

    def __init__(self, stream: TextIO, title: str) -> None:
        console = needed("rich.console", "the live panel").Console
        live = needed("rich.live", "the live panel").Live
        self._console: Any = console(file=stream)
        self._title = title
        self._rates: deque[float] = deque(maxlen=COURSE)
        utf8 = (self._console.encoding or "").lower().replace("-", "").startswith("utf8")
        self._blocks = BLOCKS if utf8 else ASCII_BLOCKS
        # Redrawn when there is news only: a thread that redraws would cost the client its time.
        self._live: Any = live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        self._rates.append(snapshot.rate)
        self._live.update(self._drawn(snapshot), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()

    def _drawn(self, snapshot: Snapshot) -> Any:
        table = needed("rich.table", "the live panel").Table.grid(padding=(0, 2))
        bar = needed("rich.progress_bar", "the live panel").ProgressBar
        group = needed("rich.console", "the live panel").Group
        panel = needed("rich.panel", "the live panel").Panel
        text = needed("rich.text", "the live panel").Text
        for label, value, style in self._rows(snapshot):
            table.add_row(text(label, style="dim"), text(value, style=style))
        whole = bar(total=max(1, snapshot.samples), completed=snapshot.completed)
        return panel(group(whole, table), title=text(self._title), title_align="left")

    def _rows(self, snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
        left = left_s(snapshot)
        to_go = "" if left is None else f", about {duration(left * 1e3)} to go"
        yield "time", f"{snapshot.elapsed_s:.0f} s {snapshot.phase}".rstrip() + to_go, ""
        done = f"{count(snapshot.completed)} of {count(snapshot.samples)}"
        yield "done", f"{done}, {count(snapshot.accepted)} accepted", ""
        yield "in flight", count(snapshot.in_flight), "bold"
        yield "samples/s", f"{rate(snapshot.rate)}  {course(self._rates, self._blocks)}", "bold"
        if snapshot.p50_ms is not None:
            yield "latency", latency_words(snapshot), ""
        yield "outcomes", bad_words(snapshot), "red bold" if any(snapshot.bad.values()) else "green"
        if snapshot.healthz_ms is not None:
            yield "healthz", duration(snapshot.healthz_ms), ""
        yield "server", f"{cores(snapshot.server_cpu)}, {size(snapshot.server_rss)}", ""
        late = "" if snapshot.late is None else f", {count(snapshot.late)} late starts"
        yield "client", f"{cores(snapshot.client_cpu)}{late}", ""
        counts = {
            "polls": snapshot.polls,
            "of them abandoned": snapshot.abandoned,
            "retries": snapshot.retries,
        }
        said = [f"{count(value)} {name}" for name, value in counts.items() if value is not None]
        if said:
            yield "traffic", ", ".join(said), ""


def cores(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f} cores"


def course(rates: deque[float], blocks: str) -> str:
    """A row of blocks, the highest being the peak."""
    peak = max(rates, default=0.0)
    if peak <= 0:
        return blocks[0] * len(rates)
    top = len(blocks) - 1
    return "".join(blocks[round(max(0.0, value) / peak * top)] for value in rates)


@contextmanager
def watching(stream: TextIO, title: str, quiet: bool = False) -> Iterator[Watcher]:
    """The way of showing that fits the stream; the terminal is put back whatever happens."""
    # A terminal that cannot move its cursor shows a panel as a heap of them.
    drawable = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    if quiet:
        yield Quiet(stream)
        return
    if not drawable:
        yield Lines(stream)
        return
    try:
        panel = Panel(stream, title)
    except MissingExtra as error:
        plain = Lines(stream)
        plain.say(f"no live panel: {error}")
        yield plain
        return
    try:
        yield panel
    finally:
        panel.close()
