"""What a scrape costs does not depend on how much is in flight."""

import pytest

from tests.bench.scrape import measure

# Of the event loop, milliseconds.
TARGET_MS = 5.0


async def test_a_scrape_says_all_that_is_in_flight() -> None:
    figures = await measure(512, 256)
    assert (figures.samples, figures.polls) == (512, 256)


@pytest.mark.system
async def test_a_scrape_is_quick_with_all_in_flight() -> None:
    figures = await measure(131_072, 16_384)
    assert (figures.samples, figures.polls) == (131_072, 16_384)
    assert figures.full_ms < TARGET_MS
