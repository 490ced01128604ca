"""What comes and goes beside the loads: sessions, cancels, polls that are given up, silence."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from tests.support.wire import Remote, wire

SAMPLES: Final = 8


class Churn:
    """Sessions one after the other until it is cancelled. counts: of what was done, by kind."""

    def __init__(self, port: int, every_s: float) -> None:
        self._port = port
        self._every_s = every_s
        self._random = random.Random(7)
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []

    async def run(self) -> None:
        """For as long as it is awaited; a busy gateway makes it slower, not wrong."""
        while True:
            try:
                await self._session()
            except (OSError, EOFError, TimeoutError, AssertionError) as error:
                self.counts[f"sessions broken off ({type(error).__name__})"] += 1
                self.errors.append(f"{type(error).__name__}: {str(error)[:300]}")
            await asyncio.sleep(self._every_s)

    async def _session(self) -> None:
        remote = Remote(self._port)
        await remote.handshake()
        self.counts["sessions"] += 1
        ids = [await remote.submit([n + 1, 2, 3]) for n in range(SAMPLES)]
        for request_id in ids:
            kind = self._random.random()
            if kind < 0.4:
                await remote.post("/api/v1/cancel_future", {"request_id": request_id})
                self.counts["samples cancelled"] += 1
            elif kind < 0.7:
                async with wire(self._port) as link:
                    remote.send_poll(link, request_id)
                    await asyncio.sleep(self._random.uniform(0, 0.05))
                    link.hang_up(reset=self._random.random() < 0.5)
                self.counts["polls given up"] += 1
        if self._random.random() < 0.5:
            path = f"/api/v1/sessions/{remote.session_id}/finish"
            await remote.post(path, {"reason": {"type": "success"}})
            self.counts["sessions finished"] += 1
        else:
            self.counts["sessions left to lapse"] += 1


@contextlib.asynccontextmanager
async def churning(port: int, every_s: float) -> AsyncIterator[Churn]:
    """A Churn while the block runs."""
    churn = Churn(port, every_s)
    running = asyncio.create_task(churn.run())
    try:
        yield churn
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
