"""The rows of `codec`, where it is there: decoding against a bare parse of the same body."""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Final

from tests.bench.processes import Bench
from tests.bench.table import Figure, Row

MODULE: Final = "tests.bench.codec"
BOUND: Final = 0.6
FIGURES: Final = (Figure("codec", "decoding over a bare full parse of the body", "us", BOUND),)


def measure(_: Bench, wanted: frozenset[str]) -> Iterator[Row]:
    if importlib.util.find_spec(MODULE) is None:
        yield FIGURES[0].missing(f"there is no {MODULE}")
        return
    found = importlib.import_module(MODULE).ratios()
    yield from rows({f"{row.form}-{row.tokens}": row.ratio for row in found})


def rows(ratios: Mapping[str, float]) -> Iterator[Row]:
    """ratios: kind of body -> decoding over parsing."""
    for name, ratio in ratios.items():
        figure = Figure(f"codec-{name}", f"decoding over a bare parse, {name}", "", BOUND, "value")
        yield figure.single(ratio)
