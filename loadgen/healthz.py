"""What the probe saw: its process, and columns and a histogram of its lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from loadgen.histogram import histogram
from loadgen.probe import ANSWERED, FAILED
from loadgen.processes import Recorder
from loadgen.results import Histogram, Series


class Probed(NamedTuple):
    """One probe. Times in seconds; `late_s` is the part of the latency that is the probe's own."""

    due: float
    latency_s: float
    late_s: float
    word: str


class Probe:
    """The process of `loadgen.probe`. `stop` before reading."""

    def __init__(self, url: str) -> None:
        self.recorder = Recorder([sys.executable, "-m", "loadgen.probe", url])
        self.probed: list[Probed] = []

    def __repr__(self) -> str:
        return f"<Probe {self.recorder.pid}, {len(self.probed)} probes>"

    def stop(self) -> None:
        """Have it end, and read what it wrote."""
        self.recorder.stop()
        self.probed = []
        for line in self.recorder.lines():
            due, latency_s, late_s, word = line.split()
            self.probed.append(Probed(float(due), float(latency_s), float(late_s), word))

    @property
    def failed(self) -> int:
        """Probes without a right answer, those not over at the end left out."""
        return sum(probe.word not in (ANSWERED, "pending") for probe in self.probed)

    @property
    def late_max_s(self) -> float:
        """How late the probe itself was at most: above it latencies are the server's."""
        return max((probe.late_s for probe in self.probed), default=0.0)

    def histogram(self, start: float = 0.0, end: float = float("inf")) -> Histogram | None:
        """Of the probes due between two times of the monotonic clock; refused ones left out."""
        waited = [
            probe.latency_s
            for probe in self.probed
            if start <= probe.due < end and probe.word != FAILED
        ]
        return histogram(np.array(waited))

    def fill(self, series: Series, start: float) -> None:
        """Put healthz columns beside the others; a second without a probe is None."""
        rows: list[list[float]] = [[] for _ in series.t]
        for probe in self.probed:
            row = int((probe.due - start) // 1)
            if probe.word != FAILED and 0 <= row < len(rows) and probe.due >= start:
                rows[row].append(probe.latency_s * 1000)
        series.healthz_p50_ms = [round(float(np.median(row)), 3) if row else None for row in rows]
        series.healthz_max_ms = [round(max(row), 3) if row else None for row in rows]


@contextlib.contextmanager
def probing(url: str) -> Iterator[Probe]:
    """Probes while the block runs."""
    probe = Probe(url)
    try:
        yield probe
    finally:
        probe.stop()
