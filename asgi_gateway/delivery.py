"""Polls: parked until something settles, the hold ends, or the client leaves.

A parked poll is one future and one entry among the holds. Completions wake single polls at once
and batched polls after a short pause, in which more of them gather; either way at most so many
polls are answered in one turn of the loop, so that health checks and submits get through a burst.
"""

import asyncio
from collections import deque
from typing import Final, Literal

from asgi_gateway.clock import Clock
from asgi_gateway.peer import Peer, Waker
from asgi_gateway.settings import PollSettings
from asgi_gateway.store.completions import Page
from asgi_gateway.store.expiry import Deadlines
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import GONE, QUEUED, RUNNING

# Longest answer of one batched poll, below 1 ms; the client comes back for the rest at once.
COMPLETIONS_PER_PAGE: Final = 1024
# Sleeping polls that are looked at in one tick: 16,000 in 0.4 s, 0.1 ms each time.
LOOKED_AT_PER_TICK: Final = 4096

# What a poll of one sample found.
Outcome = Literal["ready", "pending", "gone"]


class Delivery:
    """Parks polls and wakes them. One per gateway, inside its event loop."""

    def __init__(self, store: MemoryStore, clock: Clock, settings: PollSettings) -> None:
        self._store = store
        self._clock = clock
        self._holds: Deadlines[Waker] = Deadlines(settings.hold_s)
        self.reconfigure(settings)
        self._short_holds: list[tuple[float, Waker]] = []
        self._wakes: deque[Waker] = deque()
        self._not_looked_at: list[Waker] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gathering: dict[Waker, None] = {}
        self.stopping = False
        # Every answer ends its connection.
        self.closing = False

    def reconfigure(self, settings: PollSettings) -> None:
        """Other times, for polls that are held already too."""
        self._hold_s = self._holds.lifetime_s = settings.hold_s
        self._gather_s = settings.gather_s
        self._wakes_per_turn = settings.wakes_per_turn

    # --- polls -----------------------------------------------------------------------------------

    async def outcome(self, record: Record, peer: Peer) -> Outcome:
        """What became of a sample, after at most one hold; pending then, or if the client left."""
        state = record.state
        if (state is QUEUED or state is RUNNING) and not self.stopping:
            waker = self._held(self._hold_s)
            self._store.waiting.park(record, waker)
            try:
                peer.watch(waker)
                await waker.future
            finally:
                self._holds.stop(waker)
                self._store.waiting.unpark(record, waker)
            state = record.state
        if state is QUEUED or state is RUNNING:
            return "pending"
        return "gone" if state is GONE else "ready"

    async def completions(
        self,
        sampling_session_id: str,
        clone: int,
        prev_cursor: int,
        peer: Peer,
        timeout_s: float | None,
    ) -> Page:
        """The unread completions of one poller; an empty page after a hold without any.

        timeout_s: the client's wish, 0 for one look; the hold bounds it.
        """
        targets = self._store.targets
        page = targets.page(sampling_session_id, clone, prev_cursor, COMPLETIONS_PER_PAGE)
        while page.more:
            await asyncio.sleep(0)
            if sampling_session_id not in targets:
                return Page([], prev_cursor)
            page = targets.page(sampling_session_id, clone, prev_cursor, COMPLETIONS_PER_PAGE)
        hold_s = self._hold_s if timeout_s is None else min(timeout_s, self._hold_s)
        if page.completions or hold_s <= 0 or self.stopping:
            return page
        waker = self._held(hold_s)
        targets.park(sampling_session_id, clone, waker)
        try:
            peer.watch(waker)
            await waker.future
        finally:
            self._holds.stop(waker)
            self._gathering.pop(waker, None)
            targets.unpark(sampling_session_id, clone, waker)
        if sampling_session_id not in targets:
            return Page([], prev_cursor)  # finished meanwhile: it must not come to life again
        return targets.page(sampling_session_id, clone, prev_cursor, COMPLETIONS_PER_PAGE)

    async def nothing(self, peer: Peer, timeout_s: float | None) -> None:
        """Hold a poll that nothing will ever wake, so that its client does not spin."""
        hold_s = self._hold_s if timeout_s is None else min(timeout_s, self._hold_s)
        if hold_s > 0 and not self.stopping:
            waker = self._held(hold_s)
            try:
                peer.watch(waker)
                await waker.future
            finally:
                self._holds.stop(waker)

    def _held(self, hold_s: float) -> Waker:
        """A new waker that the end of the hold wakes."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        waker = Waker(self._loop)
        now = self._clock.now()
        if hold_s < self._hold_s:
            self._short_holds.append((now + hold_s, waker))
        else:
            self._holds.start(waker, now)
        return waker

    # --- wakes -----------------------------------------------------------------------------------

    def settled(self, record: Record) -> None:
        """A record has its outcome: tell whoever is parked for it."""
        for waker in self._store.waiting.of(record):
            self._wake_soon(waker)
        for waker in self._store.targets.report(record):
            self._wake_gathered(waker)

    def settled_elsewhere(self, record: Record) -> None:
        """The same of a record that is another process's."""
        for waker in self._store.waiting.of(record):
            self._wake_soon(waker)

    def log_grew(self, sampling_session_id: str, clone: int) -> None:
        """There is something for those who poll it in batches."""
        for waker in self._store.targets.parked_for(sampling_session_id, clone):
            self._wake_gathered(waker)

    def all_logs_grew(self) -> None:
        """There may be something for everyone who polls in batches."""
        for waker in self._store.targets.all_parked():
            self._wake_gathered(waker)

    def tick(self, now: float, budget: int) -> None:
        """End the holds whose time has come, and those whose clients have left."""
        for waker in self._holds.due(now, budget):
            self._wake_soon(waker)
        if self._short_holds:
            for due_at, waker in self._short_holds:
                if due_at <= now:
                    self._wake_soon(waker)
            self._short_holds = [
                entry for entry in self._short_holds if entry[0] > now and not entry[1].woken
            ]

        for waker in self._some_asleep():
            if waker.client_left():
                self._wake_soon(waker)

    def _some_asleep(self) -> list[Waker]:
        """The next of all held polls, in turn."""
        if not self._not_looked_at:
            self._not_looked_at = self._holds.oldest(len(self._holds))
            self._not_looked_at += [waker for _, waker in self._short_holds]
        some = self._not_looked_at[-LOOKED_AT_PER_TICK:]
        del self._not_looked_at[-LOOKED_AT_PER_TICK:]
        return some

    def stop_holding(self) -> None:
        """Answer every parked poll now, and hold none any more: the process is stopping."""
        self.stopping = self.closing = True
        held = self._holds.due(float("inf"), len(self._holds))
        held += [waker for _, waker in self._short_holds]
        self._short_holds = []
        if held and not self._wakes:
            asyncio.get_running_loop().call_soon(self._wake_some)
        self._wakes.extend(held)

    def _wake_gathered(self, waker: Waker) -> None:
        if not self._gathering:
            asyncio.get_running_loop().call_later(self._gather_s, self._wake_all_gathered)
        self._gathering[waker] = None

    def _wake_all_gathered(self) -> None:
        gathered, self._gathering = self._gathering, {}
        for waker in gathered:
            self._wake_soon(waker)

    def _wake_soon(self, waker: Waker) -> None:
        self._wakes.append(waker)
        if len(self._wakes) == 1:
            (self._loop or asyncio.get_running_loop()).call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(min(len(self._wakes), self._wakes_per_turn)):
            self._wakes.popleft().wake()
        if self._wakes:
            asyncio.get_running_loop().call_soon(self._wake_some)
