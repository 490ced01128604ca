"""The gateway as the application of a process, and not as a part of another's.

It may do what an embedded one must not: take part in signals, watch the event loop from a thread,
say that the process has no descriptors left.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final

from asgi_gateway.admin.overview import Others
from asgi_gateway.app import Gateway
from asgi_gateway.asgi import App
from asgi_gateway.clock import Clock
from asgi_gateway.descriptors import Descriptors
from asgi_gateway.drain import Stage
from asgi_gateway.settings import Settings
from asgi_gateway.signals import Chain
from asgi_gateway.watchdog import Watchdog

DESCRIPTORS_EVERY_S: Final = 1.0


class Standalone(Gateway):
    def __init__(
        self,
        settings: Settings,
        inner: App | None = None,
        *,
        clock: Clock | None = None,
        signals: bool = True,
        say_stall: Callable[[str], None] | None = None,
    ) -> None:
        """signals: whether to stand in front of the server's handlers; `serve` has its own.
        say_stall: takes the watchdog's report; standard error where not given."""
        super().__init__(settings, inner, clock=clock)
        self.descriptors = Descriptors(self._admission)
        self._watchdog = Watchdog(settings.server.stall_dump_s, say_stall)
        self._chain = Chain(self.drain, self.stop_holding) if signals else None
        self._end_all: Callable[[], None] | None = None
        self._looked_at = float("-inf")
        self.descriptors.add_to(self._metrics)
        self._watchdog.add_to(self._metrics)

    async def open(self) -> None:
        was_open = self._ticker is not None
        await super().open()
        if not was_open:
            self._watchdog.open()
            if self._chain is not None:
                self._chain.install(asyncio.get_running_loop())

    async def close(self) -> None:
        if self._chain is not None:
            self._chain.restore()
        self._watchdog.close()
        await super().close()

    def join(self, others: Others, end_all: Callable[[], None]) -> None:
        """It is one of several processes. end_all: drains them all, as often as it is called."""
        self._overviews.others = others
        self._end_all = end_all

    async def own_state(self) -> bytes:
        """`/admin/state` of this process alone."""
        return await self._overviews.json()

    def leave(self) -> None:
        """Whoever is answered connects anew for what comes next: to another process."""
        self._sampling.delivery.closing = True

    def stop_process(self) -> None:
        """As a SIGTERM does; a second call changes nothing, unlike a second signal."""
        if self._end_all is not None:
            self._end_all()
        elif self._drain.stage is Stage.SERVING:
            os.kill(os.getpid(), signal.SIGTERM)

    def tick(self) -> None:
        self._watchdog.came()
        super().tick()
        now = self._clock.now()
        if now - self._looked_at >= DESCRIPTORS_EVERY_S:
            self._looked_at = now
            self.descriptors.tick(now)
