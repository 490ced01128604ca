from collections.abc import AsyncIterator

import pytest

from tests.support.upstream import FakeUpstream


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    """A scripted upstream on a real socket, in the test's own loop."""
    async with FakeUpstream().running() as fake:
        yield fake
