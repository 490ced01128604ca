"""Upstream scripts that hold every sample until a test lets it go."""

import asyncio
from typing import Any

from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import until


class Held:
    """Answers nothing before `release`; then two tokens a sequence, at once for all."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self._upstream = upstream
        self._released = asyncio.Event()
        upstream.script = self._script

    async def _script(self, request: Request) -> Raw:
        await self._released.wait()
        return answer(200, completion([11, 12], [-1.0, -2.0], n=request.json()["n"]))

    def release(self) -> None:
        self._released.set()

    async def running(self, count: int = 1) -> None:
        """Wait until so many samples have arrived."""
        await until(lambda: len(self._upstream.requests) >= count)


def metric(text: bytes, name: str, **labels: Any) -> float:
    """One number of the Prometheus text; 0 where it has no such line."""
    shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
    start = f"asgi_gateway_{name}{{{shown}}} " if labels else f"asgi_gateway_{name} "
    for line in text.decode().splitlines():
        if line.startswith(start):
            return float(line.removeprefix(start))
    return 0.0
