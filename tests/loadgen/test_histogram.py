"""Histograms are the hdrhistogram package's, counted by numpy."""

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from loadgen.histogram import DIGITS, HIGHEST, LOWEST, decoded, histogram, merged
from loadgen.schedule import Stream, uniform


def recorded(seconds: np.ndarray) -> HdrHistogram:
    """The package's own way: one value after the other."""
    made = HdrHistogram(LOWEST, HIGHEST, DIGITS)
    for micros in np.rint(seconds * 1e6).astype(int).tolist():
        assert made.record_value(micros)
    return made


def spread(count: int, seed: int = 1) -> np.ndarray:
    """From microseconds to hours."""
    return 10 ** (uniform(seed, Stream.ARRIVALS, count) * 10 - 6)


def test_the_encoding_equals_the_packages() -> None:
    values = np.concatenate([spread(5_000), [0.0, 1e-6, 0.002047, 0.002048, 86_400.0]])
    found = histogram(values)
    assert found is not None
    assert found.hdr == recorded(values).encode().decode()
    assert found.count == 5_005


def test_percentiles_need_samples_above_them() -> None:
    found = histogram(np.full(100, 0.25))
    assert found is not None
    assert found.percentiles["p90"] == pytest.approx(250, rel=1e-3)
    assert found.percentiles["p95"] is None
    assert found.max_ms == pytest.approx(250, rel=1e-3)
    assert found.min_ms == found.mean_ms == 250.0


def test_merging_is_counting_all_together() -> None:
    parts = [spread(700, 1), spread(900, 2), spread(1_100, 3)]
    made = merged([found for part in parts if (found := histogram(part)) is not None])
    whole = histogram(np.concatenate(parts))
    assert made is not None
    assert whole is not None
    assert made.hdr == whole.hdr
    assert made.percentiles == whole.percentiles
    assert made.mean_ms == pytest.approx(whole.mean_ms)


def test_what_was_encoded_is_read_back() -> None:
    found = histogram(spread(2_000))
    assert found is not None
    back = decoded(found)
    assert back.get_total_count() == 2_000
    assert back.get_value_at_percentile(99) / 1000 == found.percentiles["p99"]


def test_nothing_has_no_histogram() -> None:
    assert histogram(np.zeros(0)) is None
    assert merged([]) is None
