"""The rows of `codec`: decoding against a bare parse of the same body, and the memory it takes."""

from collections.abc import Iterator, Sequence
from typing import Final

from tests.bench import codec
from tests.bench.codec import Ratio
from tests.bench.processes import Bench
from tests.bench.table import Figure, Row

BOUND: Final = 0.6
MEMORY_BOUND: Final = 1.0
# Of short bodies the parse is too small a part to be a floor.
LONG: Final = 8192


def _times(form: str, tokens: int) -> Figure:
    bound = BOUND if tokens >= LONG else None
    what = f"decode and encode {tokens:,} tokens, {form} body; floor: bare parse"
    return Figure(f"codec-{form}-{tokens}", what, "us", bound)


def _memory(form: str, tokens: int) -> Figure:
    what = f"peak memory beside the {form} body of {tokens:,} tokens"
    return Figure(f"codec-memory-{form}-{tokens}", what, "x", MEMORY_BOUND, "value")


FIGURES: Final = tuple(
    figure
    for tokens in codec.LENGTHS
    for form in codec.FORMS
    for figure in (_times(form, tokens), _memory(form, tokens))[: 1 if tokens < LONG else 2]
)


def measure(_: Bench, wanted: frozenset[str]) -> Iterator[Row]:
    yield from (row for row in rows(codec.ratios()) if row.name in wanted)


def rows(ratios: Sequence[Ratio]) -> Iterator[Row]:
    for found in ratios:
        figure = _times(found.form, found.tokens)
        yield figure.paired([(found.parse_us, found.codec_us)])
        if found.memory is not None:
            yield _memory(found.form, found.tokens).single(round(found.memory, 2))
