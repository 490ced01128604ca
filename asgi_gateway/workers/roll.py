"""A rolling restart: one new worker after the other, each before the one whose place it takes."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from asgi_gateway.workers.told import LEAVE
from asgi_gateway.workers.worker import Seat, Worker

log = logging.getLogger(__name__)

# A worker reads its journal before it accepts.
START_S: Final = 120.0


class Roll:
    """Over those that are there when it begins; one that dies meanwhile is new anyway.

    The next one begins when the old one has ended, so that never more than one is there twice.
    """

    def __init__(self, seats: Iterable[Seat], start: Callable[[], Worker]) -> None:
        """start: a further worker. Raises OSError."""
        self._left = [(seat, seat.worker) for seat in seats if seat.worker is not None]
        self._start = start
        self._seat: Seat | None = None
        self._fresh: Worker | None = None
        self._old: Worker | None = None
        log.warning("rolling restart of %d workers", len(self._left))

    def __repr__(self) -> str:
        return f"<Roll {len(self._left)} left>"

    def fills(self, seat: Seat) -> bool:
        """Whether there will be a new worker in it without another one."""
        return seat is self._seat and self._fresh is not None

    def deadline(self) -> float | None:
        """When `step` is due, whatever happens."""
        return self._fresh.started_at + START_S if self._fresh is not None else None

    def step(self, now: float) -> bool:
        """Go on; False at its end."""
        if self._fresh is not None:
            return self._look_at(self._fresh, now)
        if self._old is not None and not self._old.ended():
            return True
        while self._left:
            self._seat, self._old = self._left.pop(0)
            if self._seat.worker is self._old:
                try:
                    self._fresh = self._start()
                except OSError as error:
                    return self._stopped(f"no further worker can be started: {error}", now)
                return True
        log.warning("the rolling restart is done")
        return False

    def _look_at(self, fresh: Worker, now: float) -> bool:
        assert self._seat is not None
        if fresh.accepts and not fresh.ended():
            self._seat.taken(fresh)
            self._fresh = None
            if self._old is not None:
                self._old.end(LEAVE)
            return self.step(now)  # it may be gone already
        if fresh.ended():
            return self._stopped(f"the new worker ended with {fresh.how()}", now)
        if now >= fresh.started_at + START_S:
            fresh.told = True
            fresh.kill()
            return self._stopped(f"the new worker did not accept within {START_S:g} s", now)
        return True

    def _stopped(self, why: str, now: float) -> bool:
        log.error("the rolling restart stops, the other workers stay: %s", why)
        seat, self._fresh = self._seat, None
        if seat is not None and seat.worker is None:
            seat.due_at = now  # the old one died while it was waited for
        return False
