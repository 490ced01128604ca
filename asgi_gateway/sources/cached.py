"""A source that is asked by interval, and sooner once a connect to what it told has failed."""

import asyncio
import logging
from typing import Final

from asgi_gateway.clock import Clock
from asgi_gateway.sources import SourceError, UrlSource

log = logging.getLogger(__name__)

INTERVAL_S: Final = 30.0
PAUSE_S: Final = 1.0


class Cached:
    """Itself a source; its own answers cost nothing until a question is due.

    interval_s: how old an answer may be. pause_s: the least time between two questions, which is
    also how often it is asked while nothing is published.
    """

    def __init__(
        self,
        source: UrlSource,
        clock: Clock,
        *,
        interval_s: float = INTERVAL_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._source = source
        self._clock = clock
        self._interval_s = interval_s
        self._pause_s = pause_s
        self._known: list[str] | None = None
        self._asked_at: float | None = None
        self._doubted = False
        self._problem: str | None = None
        self._asking = asyncio.Lock()
        # Questions, those without an answer, and when the last answer came.
        self.asked = 0
        self.failures = 0
        self.told_at: float | None = None

    def __repr__(self) -> str:
        return f"<Cached {self._source!r} {self._known}>"

    @property
    def known(self) -> list[str]:
        """What was told last; empty before the first answer."""
        return list(self._known or ())

    async def current(self) -> list[str]:
        """What is published, as of `interval_s` ago at most.

        Whoever asks while a question is under way waits for its answer. Where the source cannot
        tell, what it told last stands.

        Raises:
            SourceError: it never could tell.
        """
        if self.due:
            async with self._asking:
                if self.due:
                    await self._ask()
        if self._known is None:
            raise SourceError(self._problem or "nothing was asked yet")
        return list(self._known)

    def failed(self, url: str) -> None:
        """No connection to `url`: it may have moved. News of a URL that is not told any more is
        none."""
        if self._known and url.rstrip("/") in self._known:
            self._doubted = True

    @property
    def due(self) -> bool:
        """Whether the next `current` asks."""
        if self._asked_at is None:
            return True
        urgent = self._doubted or not self._known
        return self._clock.now() - self._asked_at >= (self._pause_s if urgent else self._interval_s)

    async def _ask(self) -> None:
        doubted, self._doubted = self._doubted, False
        self.asked += 1
        try:
            told = await self._source.current()
        except SourceError as error:
            self.failures += 1
            if self._problem is None:
                log.warning("where the upstream is cannot be told: %s", error)
            self._problem = str(error)
            self._doubted |= doubted
        else:
            if self._problem is not None:
                log.warning("where the upstream is can be told again: %s", told)
            elif self._known is not None and told != self._known:
                log.info("the upstream moved from %s to %s", self._known, told)
            self._known, self._problem = told, None
            self.told_at = self._clock.now()
        self._asked_at = self._clock.now()
