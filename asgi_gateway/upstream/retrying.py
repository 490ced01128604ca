"""Samples that go upstream again: when, and how many beside those that go for the first time.

Pure; time is an argument.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Final

from asgi_gateway.store.records import Record
from asgi_gateway.store.states import QUEUED
from asgi_gateway.upstream.window import Window

# Repeats in a window whatever the traffic: a single sample is tried again without delay.
FLOOR: Final = 10
# Nothing failed for so long, and something was answered: what waits is no burden any more.
QUIET_S: Final = 3.0


class RetryBudget:
    """At most FLOOR repeats and `share` of the first sends, over ten seconds.

    Over it they wait. Once the upstreams work again, those that wait then are let go: a line of
    samples that failed in an outage is work like any other.
    """

    __slots__ = ("_credit", "_failed_at", "answered", "sent", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self._credit = 0
        self._failed_at = float("-inf")
        # Whoever sends counts what is sent for the first time as the first of the two.
        self.sent = Window()
        # Whether an upstream has answered since one has failed a sample; whoever hears it sets it.
        self.answered = False

    def __repr__(self) -> str:
        return f"<RetryBudget {self._credit} let go>"

    def sent_again(self) -> None:
        if self._credit:
            self._credit -= 1
        else:
            self.sent.second += 1

    def allows(self, now: float) -> bool:
        """Whether a sample may be sent again now."""
        if self._credit:
            return True
        first, again = self.sent.recent(now)
        return again < FLOOR + int(self.share * first)

    def failed(self, now: float) -> None:
        """An upstream has failed a sample: nobody is let go."""
        self._failed_at = now
        self.answered = False
        self._credit = 0

    def quiet(self, now: float) -> bool:
        """Whether the upstreams have worked for a while."""
        return self.answered and now - self._failed_at >= QUIET_S

    def let_go(self, waiting: int) -> None:
        """So many wait, and the upstreams work."""
        self._credit = waiting


class Repeats:
    """QUEUED records that were upstream before: `ready` are those whose time has come, in order."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.ready: deque[Record] = deque()
        # Not before, order, record, not before that even if its upstream is back.
        self._later: list[tuple[float, int, Record, float]] = []
        self._order = itertools.count()
        # One for each record and reason to wait, in the order of their times: when the wait began,
        # the record's id, its attempts so far. No record, or this would keep results that nobody
        # holds any more.
        self._graces: deque[tuple[float, str, int]] = deque()

    def __repr__(self) -> str:
        return f"<Repeats {len(self.ready)} ready, {len(self._later)} later>"

    @property
    def later(self) -> int:
        return len(self._later)

    def add(self, record: Record, now: float, *, not_before: float, earliest: float) -> None:
        """Put a record in line for a time of the monotonic clock.

        earliest: not before that even if its upstream works again; the upstream's own wish.
        """
        if record.unavailable_count <= 1:  # after that its grace time has begun already
            self._graces.append((now, record.request_id, record.attempts))
        if not_before <= now:
            self.ready.append(record)
        else:
            heapq.heappush(self._later, (not_before, next(self._order), record, earliest))

    def due(self, now: float) -> None:
        """Make those ready whose time has come."""
        while self._later and self._later[0][0] <= now:
            self.ready.append(heapq.heappop(self._later)[2])

    def recovered(self, now: float) -> None:
        """An upstream works again: nothing but its own wish keeps a sample from it."""
        later, self._later = self._later, []
        for _, order, record, earliest in sorted(later):
            if earliest <= now:
                self.ready.append(record)
            else:
                heapq.heappush(self._later, (earliest, order, record, earliest))

    def expired(self, now: float) -> Iterator[tuple[str, int]]:
        """Id and attempts then of those whose grace time has ended, and which may still wait."""
        while self._graces and self._graces[0][0] + self.grace_s <= now:
            _, request_id, attempts = self._graces.popleft()
            yield request_id, attempts

    def waits_in_vain(self, record: Record, attempts: int, now: float) -> bool:
        """Whether one of `expired` is still waiting, and nothing gave it a longer time since."""
        if record.state is not QUEUED:
            return False
        since = record.unavailable_since
        return record.attempts == attempts or (since is not None and since + self.grace_s <= now)

    def drop_settled(self) -> None:
        queued = [record for record in self.ready if record.state is QUEUED]
        self.ready.clear()
        self.ready.extend(queued)

    def clear(self) -> None:
        self.ready.clear()
        self._later.clear()
        self._graces.clear()
