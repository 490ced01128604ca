"""How fast a series rises, and how sure that is: for soaks, where the question is whether at all.

A server's memory goes up and down with its load by far more than a leak adds in the same time, and
neighbouring looks are not independent. So the series is cut into blocks, each block is its median,
and the slope is the median of the slopes of pairs of blocks (Theil and Sen), which odd blocks do
not move. Only pairs at most a quarter of the series apart count: a leak rises between any two of
them, while one step, as of a burst whose memory was not all given back, is in few of them. The
interval is a bootstrap over the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVEL: Final = 0.95
ROUNDS: Final = 2_000
BLOCKS: Final = 24
NEAR: Final = 4
"""Pairs are at most this part of the series apart."""

LEAST_BLOCKS: Final = 8
"""With fewer an interval would say nothing."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Units of the values a second; low and high bound it at the level asked for.

    medians: of the blocks, in order of time.
    """

    per_s: float
    low: float
    high: float
    blocks: int
    medians: tuple[float, ...]


def slope(times_s: Floats, values: Floats, seed: int, level: float = LEVEL) -> Slope:
    """Of a series, float64[n] each, in order of time.

    Raises ValueError for fewer values than LEAST_BLOCKS, and for columns of different lengths.
    """
    if times_s.shape != values.shape:
        raise ValueError(f"{times_s.size} times and {values.size} values")
    if times_s.size < LEAST_BLOCKS:
        raise ValueError(f"{times_s.size} values, at least {LEAST_BLOCKS} are needed")
    blocks = min(BLOCKS, times_s.size)
    at = np.array([np.median(part) for part in np.array_split(times_s, blocks)])
    level_of = np.array([np.median(part) for part in np.array_split(values, blocks)])
    random = np.random.default_rng(seed)
    draws = np.sort(random.integers(0, blocks, (ROUNDS, blocks)), axis=1)
    found = [rise for draw in draws if (rise := _rise(at, level_of, draw)) is not None]
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    per_s = _rise(at, level_of, np.arange(blocks))
    assert per_s is not None
    return Slope(per_s, float(low), float(high), blocks, tuple(level_of.tolist()))


def _rise(at: Floats, values: Floats, chosen: npt.NDArray[np.int64]) -> float | None:
    """The median slope of all pairs of these blocks that are near; None where there is none."""
    first, second = np.triu_indices(chosen.size, 1)
    left, right = chosen[first], chosen[second]
    near = (left != right) & (right - left <= max(1, at.size // NEAR))
    if not near.any():
        return None
    left, right = left[near], right[near]
    return float(np.median((values[right] - values[left]) / (at[right] - at[left])))
