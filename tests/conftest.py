import signal
from collections.abc import AsyncIterator

import pytest

from tests.support import gateway
from tests.support.upstream import FakeUpstream

# A shell starts what it runs in the background with SIGINT ignored, and what is ignored stays so in
# all children: those that the tests interrupt would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    """A scripted upstream on a real socket, in the test's own loop."""
    async with FakeUpstream().running() as fake:
        yield fake


@pytest.fixture(params=["httptools", "aiohttp"])
def each_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """For tests of what an upstream does: they hold whichever way it is spoken to."""
    monkeypatch.setattr(gateway, "transport", request.param)
    transport: str = request.param
    return transport
