"""Links for tests, closed at their end."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from asgi_gateway.clock import SystemClock
from asgi_gateway.shared.link import Link
from tests.support.waiting import until

TIMEOUT_S = 1.0


class Replies(list[Any]):
    """What came of calls, in the order in which it came."""

    @property
    def kinds(self) -> list[str]:
        return [type(reply).__name__ for reply in self]


@contextlib.asynccontextmanager
async def linked(url: str, *, up: bool = True, **options: Any) -> AsyncIterator[Link]:
    """An open link; `up`: it must be connected."""
    limits = {"timeout_s": TIMEOUT_S, "max_waiting": 10_000, "max_waiting_bytes": 1 << 24}
    link = Link(url, clock=SystemClock(), **{**limits, **options})
    try:
        await link.open()
        if up:
            await until(lambda: link.up)
        yield link
    finally:
        await link.close()
    assert (link.waiting, link.waiting_bytes) == (0, 0)


async def told(replies: Replies, count: int, within_s: float = 5.0) -> Replies:
    """Once so many calls have come to an end."""
    await until(lambda: len(replies) >= count, within_s)
    return replies


async def trouble_of(url: str, **options: Any) -> str:
    """Why a link does not come up."""
    async with linked(url, up=False, **options) as link:
        await until(lambda: "not connected yet" not in link.trouble)
        assert not link.up
        assert link.down_since is not None
        return link.trouble
