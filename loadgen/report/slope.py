"""How fast a series rises, and how sure that is: for soaks, where the question is whether at all.

A server's memory goes up and down with its load by far more than a leak adds in the same time, and
neighbouring looks are not independent. So the series is cut into blocks, each block is its median,
and the slope is the median of the slopes of all pairs of blocks (Theil and Sen), which a few odd
blocks do not move. The interval is a bootstrap over the blocks.
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
    # Of two draws of one block there is no slope: it needs two times.
    found = [theil_sen(at[chosen], level_of[chosen]) for chosen in _draws(random, blocks)]
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return Slope(theil_sen(at, level_of), float(low), float(high), blocks, tuple(level_of.tolist()))


def _draws(random: np.random.Generator, blocks: int) -> list[npt.NDArray[np.int64]]:
    draws = random.integers(0, blocks, (ROUNDS, blocks))
    return [draw for draw in draws if np.unique(draw).size > 1]


def theil_sen(times_s: Floats, values: Floats) -> float:
    """The median slope of all pairs at different times."""
    first, second = np.triu_indices(times_s.size, 1)
    apart = times_s[second] - times_s[first]
    usable = apart != 0
    return float(np.median((values[second] - values[first])[usable] / apart[usable]))
