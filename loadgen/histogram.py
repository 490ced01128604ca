"""HDR histograms from columns of seconds: counted by numpy, encoded by the hdrhistogram package."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from loadgen.results import PERCENTILES, Histogram

MISSING: Final = "loadgen needs the packages of its extra: pip install 'asgi-gateway[loadgen]'"

try:
    from hdrh.histogram import HdrHistogram
except ImportError:  # pragma: no cover - depends on what is installed
    raise SystemExit(MISSING) from None

LOWEST: Final = 1
HIGHEST: Final = 24 * 3600 * 1_000_000
DIGITS: Final = 3
"""Whole microseconds up to a day, three digits: the counts that all histograms here share."""

_HALF_BITS: Final = 10
_HALF: Final = 1 << _HALF_BITS
_FIRST: Final = 2 * _HALF - 1
ABOVE: Final = 10
"""A percentile with fewer samples above it is not told."""


def indexes(micros: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where an HDR histogram of this layout counts each value."""
    exponents = np.frexp((micros | _FIRST).astype(np.float64))[1].astype(np.int64)
    buckets = exponents - (_HALF_BITS + 1)
    return ((buckets + 1) << _HALF_BITS) + (micros >> buckets) - _HALF


def histogram(seconds: npt.NDArray[np.float64]) -> Histogram | None:
    """Of durations in seconds, negative ones taken as 0; None of none."""
    if not seconds.size:
        return None
    micros = np.clip(np.rint(seconds * 1e6), 0, HIGHEST).astype(np.int64)
    made: Any = HdrHistogram(LOWEST, HIGHEST, DIGITS)
    where = indexes(micros)
    counts = np.frombuffer(made.counts, np.uint64)
    counts += np.bincount(where, minlength=counts.size).astype(np.uint64)
    made.total_count = micros.size
    made.min_value = int(micros[micros > 0].min(initial=HIGHEST))
    made.max_value = int(micros.max())
    return _told(made, float(micros.mean()), float(micros.min()))


def decoded(histogram: Histogram) -> Any:
    """The HdrHistogram of the package, to add to or to read further percentiles off."""
    return HdrHistogram.decode(histogram.hdr)


def merged(histograms: list[Histogram]) -> Histogram | None:
    """Of all values of all; None of none."""
    if not histograms:
        return None
    sums = decoded(histograms[0])
    for other in histograms[1:]:
        sums.add(decoded(other))
    count = sum(each.count for each in histograms)
    mean_ms = sum(each.mean_ms * each.count for each in histograms) / count
    return _told(sums, mean_ms * 1000, min(each.min_ms for each in histograms) * 1000)


def _told(made: Any, mean: float, least: float) -> Histogram:
    count = made.total_count
    percentiles: dict[str, float | None] = {}
    for percent in PERCENTILES:
        enough = count * (100 - percent) >= 100 * ABOVE
        value = made.get_value_at_percentile(percent) / 1000 if enough else None
        percentiles[f"p{percent:g}"] = value
    return Histogram(
        hdr=made.encode().decode(),
        count=count,
        min_ms=least / 1000,
        mean_ms=round(mean / 1000, 4),
        max_ms=made.get_max_value() / 1000,
        percentiles=percentiles,
    )
