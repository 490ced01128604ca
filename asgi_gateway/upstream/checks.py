"""The health checks: every upstream is asked for /health, each by a task of its own."""

import asyncio
from collections.abc import Awaitable, Callable

from asgi_gateway.clock import Clock
from asgi_gateway.errors import Unavailable
from asgi_gateway.upstream.fleet import Fleet
from asgi_gateway.upstream.standing import Upstream

Ask = Callable[[str], Awaitable[None]]


class Checks:
    def __init__(self, fleet: Fleet, clock: Clock, ask: Ask, every_s: float) -> None:
        """ask: raises Unavailable where the upstream of a URL is not alive. every_s: 0 is never."""
        self._fleet = fleet
        self._clock = clock
        self._ask = ask
        self._every_s = every_s
        self._due_at: float | None = None
        self._asking: dict[Upstream, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Checks {len(self._asking)} under way>"

    def reconfigure(self, every_s: float) -> None:
        """Another interval, from the last check on."""
        if self._due_at is not None:
            self._due_at += every_s - self._every_s
        self._every_s = every_s

    def tick(self, now: float) -> None:
        """Begin what is due; an upstream that is still being asked is not asked twice."""
        if self._due_at is None:
            self._due_at = now + self._every_s
        if not self._every_s or now < self._due_at:
            return
        self._due_at = now + self._every_s
        for upstream in self._fleet.upstreams:
            if upstream not in self._asking:
                task = asyncio.get_running_loop().create_task(self._check(upstream))
                self._asking[upstream] = task

    async def _check(self, upstream: Upstream) -> None:
        try:
            await self._ask(upstream.url)
        except Unavailable as error:
            if error.ours:
                return  # it was not asked
            alive = False
        else:
            alive = True
        finally:
            del self._asking[upstream]
        self._fleet.checked(upstream, alive, self._clock.now())

    def close(self) -> None:
        """Ask no more."""
        self._every_s = 0.0
        for task in self._asking.values():
            task.cancel()
