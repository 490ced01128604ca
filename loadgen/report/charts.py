"""What the page's charts are drawn from: a list of charts with their lines, as JSON types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from loadgen.report.figures import histograms
from loadgen.report.spectrum import spectrum
from loadgen.results import Result, Series

Numbers = Sequence[float | None] | Sequence[int]

TIME: Final = "seconds since the first planned sample"


def charts(result: Result) -> list[dict[str, Any]]:
    """Every chart that has a value. unit: per_s, count, ms, bytes or cores, for the tick labels.

    x: seconds, or for the spectrum 1 / (1 - percentile), which its axis shows as a percentile.
    """
    courses = (_course(course, result.series) for course in COURSES)
    made = [chart for chart in courses if chart["lines"]]
    points = _spectra(result)
    return [*made, points] if points["lines"] else made


class Course(NamedTuple):
    """A chart over time. lines: their names, and the columns of results.Series that they show."""

    key: str
    title: str
    unit: str
    lines: dict[str, str]


COURSES: Final = (
    Course(
        "throughput",
        "Throughput",
        "per_s",
        {
            "samples planned": "planned",
            "samples accepted": "accepted",
            "samples completed": "completed",
            "polls": "polls",
        },
    ),
    Course("in-flight", "In flight", "count", {"samples": "in_flight"}),
    Course(
        "latency",
        "Latency over time, end to end from the plan",
        "ms",
        {"p50": "p50_ms", "p99": "p99_ms"},
    ),
    Course("healthz", "Health probe", "ms", {"p50": "healthz_p50_ms", "max": "healthz_max_ms"}),
    Course("rss", "Server memory (RSS)", "bytes", {"server": "server_rss"}),
    Course("cpu", "CPU", "cores", {"server": "server_cpu", "client": "client_cpu"}),
    Course("lag", "Event loop lag", "ms", {"server": "server_lag_ms", "client": "client_lag_ms"}),
    Course("descriptors", "Server descriptors", "count", {"server": "server_descriptors"}),
)


def _course(course: Course, series: Series) -> dict[str, Any]:
    """Lines without a single value are left out: they were not measured."""
    shown = []
    for label, column in course.lines.items():
        values: Numbers = getattr(series, column)
        if len(values) == len(series.t) and any(value is not None for value in values):
            shown.append({"label": label, "y": [_rounded(value) for value in values]})
    return {
        "key": course.key,
        "title": course.title,
        "unit": course.unit,
        "x": list(series.t),
        "xLabel": TIME,
        "lines": shown,
    }


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
