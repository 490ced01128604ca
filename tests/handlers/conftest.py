"""A gateway that has a session and a sampling session."""

from collections.abc import AsyncIterator

import pytest

from tests.support.gateway import Driven
from tests.support.routes import ready
from tests.support.upstream import FakeUpstream


@pytest.fixture
async def gateway(upstream: FakeUpstream) -> AsyncIterator[Driven]:
    async with ready(upstream.url) as made:
        yield made
