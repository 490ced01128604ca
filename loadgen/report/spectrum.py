"""HDR histograms read back: counts by value, and the percentile spectrum."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from loadgen.report.extra import needed
from loadgen.results import Histogram, SchemaError

LEAST_ABOVE: Final = 10
"""A percentile with fewer samples above it would be noise, see the comparison of load tools that
refuse it: a p99.9 of 1,000 samples is one sample."""

PER_HALF: Final = 5
"""Points of the spectrum each time the distance to 100 % halves, as the HDR tools draw it."""


def least_count(percentile: float) -> int:
    """How many samples a percentile needs to have LEAST_ABOVE above it."""
    # Rounded first: 100 - 99.9 is 0.0999..., which would ask for 10,001 samples.
    share = round(1 - percentile / 100, 12)
    return int(np.ceil(round(LEAST_ABOVE / share, 6))) if share > 0 else 2**63


def buckets(histogram: Histogram) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Values in ms, ascending, and how many samples have each. Float64[n] and int64[n].

    Raises SchemaError where `hdr` is no histogram or holds another number of samples than `count`.
    """
    hdr: Any = needed("hdrh.histogram", "reading a histogram").HdrHistogram
    if histogram.count == 0:
        return np.empty(0), np.empty(0, np.int64)
    try:
        read = hdr.decode(histogram.hdr)
        # Its own iterator takes a tenth of a second; this reads the same array.
        every = np.frombuffer(read.counts, np.uint64)
        filled = np.flatnonzero(every)
        highest = [
            read.get_highest_equivalent_value(read.get_value_from_index(int(index)))
            for index in filled
        ]
    except Exception as error:  # the decoder raises whatever its bytes lead to
        raise SchemaError(f"no result of loadgen: hdr is no histogram: {error}") from error
    values = np.array(highest, np.float64) / 1e3
    counts = every[filled].astype(np.int64)
    if counts.sum() != histogram.count:
        raise SchemaError(
            f"no result of loadgen: hdr holds {counts.sum():,} samples, "
            f"count says {histogram.count:,}"
        )
    return values, counts


def percentile(
    values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], wanted: float
) -> float:
    """The value in ms that `wanted` percent of the samples do not exceed."""
    totals = np.cumsum(counts)
    rank = max(1.0, np.ceil(round(wanted / 100 * totals[-1], 6)))
    return float(values[np.searchsorted(totals, rank)])


def spectrum(histogram: Histogram) -> list[tuple[float, float]]:
    """Percentile and value in ms, closer together near 100, up to LEAST_ABOVE samples above."""
    values, counts = buckets(histogram)
    points = []
    total = histogram.count
    step = 0
    while total:
        wanted = 100 * (1 - 2 ** (-step / PER_HALF))
        if total * (1 - wanted / 100) < LEAST_ABOVE:
            break
        points.append((wanted, percentile(values, counts, wanted)))
        step += 1
    return points
