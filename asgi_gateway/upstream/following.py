"""Upstreams that are where a source says they are: asked in the background, and followed."""

import asyncio
import logging
from typing import Final

from asgi_gateway.clock import Clock
from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.sources import SourceError
from asgi_gateway.sources.cached import Cached
from asgi_gateway.sources.configured import configured
from asgi_gateway.upstream.fleet import Fleet

log = logging.getLogger(__name__)

# Without the error, which names hosts: whoever reaches /readyz reads this.
NOT_READ: Final = "upstream.source was not read yet"
UNREADABLE: Final = "upstream.source cannot be read; the log says why"
NONE_PUBLISHED: Final = "upstream.source publishes none now"


def following(settings: UpstreamSettings, fleet: Fleet, clock: Clock) -> "Following | None":
    """Follows `upstream.source`; None where there is none.

    Raises:
        SettingsError: it cannot be used.
    """
    source = configured(settings, clock)
    return Following(source, fleet, clock) if source is not None else None


class Following:
    """Keeps the fleet at what `source` tells. Where it cannot tell, the fleet stays as it is."""

    def __init__(self, source: Cached, fleet: Fleet, clock: Clock) -> None:
        self._source = source
        self._fleet = fleet
        self._clock = clock
        self._began_at = clock.now()
        self._asking: asyncio.Task[None] | None = None
        fleet.doubted = source.failed
        fleet.is_without(NOT_READ)

    def __repr__(self) -> str:
        return f"<Following {self._source!r}>"

    def tick(self) -> None:
        """Begin to ask where that is due; costs nothing else."""
        if self._asking is None and self._source.due:
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        try:
            urls = await self._source.current()
        except SourceError:
            self._fleet.is_without(UNREADABLE)
        else:
            self._fleet.is_without(NONE_PUBLISHED)
            self._fleet.replace(urls)
        finally:
            self._asking = None

    def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()

    def add_to(self, metrics: Metrics) -> None:
        source = self._source
        metrics.counter(
            "upstream_source_reads_total",
            "Times that upstream.source was asked.",
            lambda: source.asked,
        )
        metrics.counter(
            "upstream_source_failures_total",
            "Times that upstream.source could not tell.",
            lambda: source.failures,
        )
        metrics.gauge(
            "upstream_source_age_seconds",
            "Since upstream.source last could tell, or since the start.",
            self._age_s,
        )

    def _age_s(self) -> float:
        told_at = self._source.told_at
        return self._clock.now() - (self._began_at if told_at is None else told_at)
