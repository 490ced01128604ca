"""Waiting for what happens on real sockets, and only for that."""

import asyncio
from collections.abc import Callable

WITHIN_S = 5.0


async def until(found: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Let the loop run until `found()` is true; fails after `within_s` seconds of real time."""
    async with asyncio.timeout(within_s):
        while not found():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.002)


async def event(happened: asyncio.Event, within_s: float = WITHIN_S) -> None:
    """Until an event is set."""
    async with asyncio.timeout(within_s):
        await happened.wait()
