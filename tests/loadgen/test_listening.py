"""The stand-in's sockets: shut for a while, and open again whatever the loop's clock says."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from loadgen.listening import Listener
from tests.loadgen.test_upstream import until

DUE = 100.05


class Coarse:
    """A loop whose clock has not quite reached the time of a timer that fires.

    uvloop's is in whole milliseconds, so that 0.3 s later may be a hair more than it ever says.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = 100.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any) -> asyncio.TimerHandle:
        def fire() -> None:
            self.now = math.nextafter(when, 0)
            callback()

        return self._loop.call_later(when - self.now, fire)


async def opened() -> tuple[Listener, Coarse]:
    listener = Listener(asyncio.Protocol, ["127.0.0.1"], 0)
    await listener.start()
    coarse = Coarse(asyncio.get_running_loop())
    listener._loop = coarse  # type: ignore[assignment]
    return listener, coarse


async def test_it_opens_again_although_the_clock_is_a_hair_behind() -> None:
    listener, coarse = await opened()
    listener.refuse(DUE - 100.0)
    assert listener.shut
    await until(lambda: coarse.now > 100.0)
    await until(lambda: not listener.shut)
    await asyncio.sleep(0.05)
    await until(lambda: not listener.shut)
    listener.stop()


async def test_it_stays_shut_where_it_is_asked_again_while_it_opens() -> None:
    listener, coarse = await opened()
    listener.refuse(0.02)
    await until(lambda: coarse.now > 100.0)
    listener.refuse(0.2)  # its opening has begun
    await asyncio.sleep(0.1)
    assert listener.shut
    await until(lambda: not listener.shut)
    listener.stop()
