"""What the page's charts are drawn from: a list of charts with their lines, as JSON types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from loadgen.report.figures import histograms
from loadgen.report.spectrum import spectrum
from loadgen.results import Result

Numbers = Sequence[float | None] | Sequence[int]

TIME: Final = "seconds since the first planned sample"


def charts(result: Result) -> list[dict[str, Any]]:
    """Every chart that has a value. unit: per_s, count, ms, bytes or cores, for the tick labels.

    x: seconds, or for the spectrum 1 / (1 - percentile), which its axis shows as a percentile.
    """
    made = [chart for chart in _courses(result) if chart["lines"]]
    points = _spectra(result)
    return [*made, points] if points["lines"] else made


def _courses(result: Result) -> Iterator[dict[str, Any]]:
    course = result.series
    yield _chart(
        "throughput",
        "Throughput",
        "per_s",
        course.t,
        ("samples planned", course.planned),
        ("samples accepted", course.accepted),
        ("samples completed", course.completed),
        ("polls", course.polls),
    )
    yield _chart("in-flight", "In flight", "count", course.t, ("samples", course.in_flight))
    yield _chart(
        "latency",
        "Latency over time, end to end from the plan",
        "ms",
        course.t,
        ("p50", course.p50_ms),
        ("p99", course.p99_ms),
    )
    yield _chart(
        "healthz",
        "Health probe",
        "ms",
        course.t,
        ("p50", course.healthz_p50_ms),
        ("max", course.healthz_max_ms),
    )
    yield _chart("rss", "Server memory (RSS)", "bytes", course.t, ("server", course.server_rss))
    yield _chart(
        "cpu",
        "CPU",
        "cores",
        course.t,
        ("server", course.server_cpu),
        ("client", course.client_cpu),
    )
    yield _chart(
        "lag",
        "Event loop lag",
        "ms",
        course.t,
        ("server", course.server_lag_ms),
        ("client", course.client_lag_ms),
    )
    yield _chart(
        "descriptors",
        "Server descriptors",
        "count",
        course.t,
        ("server", course.server_descriptors),
    )


def _chart(
    key: str, title: str, unit: str, t: Sequence[float], *lines: tuple[str, Numbers]
) -> dict[str, Any]:
    """Lines without a single value are left out: they were not measured."""
    shown = [
        {"label": label, "y": [_rounded(value) for value in values]}
        for label, values in lines
        if len(values) == len(t) and any(value is not None for value in values)
    ]
    return {"key": key, "title": title, "unit": unit, "x": list(t), "xLabel": TIME, "lines": shown}


def _rounded(value: float | None) -> float | None:
    """Six digits: more than a chart can show, half the size of the page."""
    return None if value is None else float(f"{value:.6g}")


def _spectra(result: Result) -> dict[str, Any]:
    """A line per stage. A stage with fewer samples ends sooner, at its last honest percentile."""
    curves: list[tuple[str, list[tuple[float, float]]]] = []
    for name, histogram in histograms(result):
        points = spectrum(histogram)
        if len(points) > 1:
            curves.append((name, points))
    distances = sorted({_distance(percent) for _, points in curves for percent, _ in points})
    lines = []
    for name, points in curves:
        values = {_distance(percent): value for percent, value in points}
        lines.append(
            {"label": name, "y": [_rounded(values.get(distance)) for distance in distances]}
        )
    return {
        "key": "spectrum",
        "title": "Percentile spectrum",
        "unit": "ms",
        "x": distances,
        "xLabel": "percentile",
        "lines": lines,
    }


def _distance(percent: float) -> float:
    return round(1 / (1 - percent / 100), 6)
