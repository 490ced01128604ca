"""What one request or one tick asks of any number of samples, a turn's work at a time."""

import asyncio
import operator
from collections.abc import Callable, Sequence
from typing import Final

from asgi_gateway.sessions import Swept
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import State
from asgi_gateway.turns import Turns

# Samples that are acknowledged, ended or dropped in one turn of the loop, about 2 ms.
WORK_PER_TURN: Final = 512


class Bulk:
    def __init__(self, store: MemoryStore, end: Callable[[Record, bool], None]) -> None:
        """end: evicts a record, told or not, and ends its upstream work."""
        self._store = store
        self._end = end
        self._turns = Turns(WORK_PER_TURN)
        self._ending: set[asyncio.Task[None]] = set()
        self._making_room: Record | None = None

    async def acknowledge(self, request_ids: Sequence[str], caller: str) -> None:
        """The client has these outcomes; none of them is held any more at the end."""
        async for some in self._turns.slices(request_ids):
            self._store.acknowledge(some, caller)

    async def end_session(self, sampling_session_id: str, *, finished: bool) -> None:
        """End a sampling session's upstream work and drop its results: its ids answer 410. What its
        client, if it comes back, submits meanwhile is not touched.

        finished: its client said so and will not ask; otherwise it may come back, and is told then.
        """
        records = self._store.targets.records(sampling_session_id)
        # What waits goes first: it would be sent in the place of what is aborted. Results go last.
        records.sort(key=operator.attrgetter("state"))
        async for some in self._turns.slices(records):
            for record in some:
                if record.state is not State.GONE:
                    self._end(record, finished)
        if finished:
            self._store.targets.forget(sampling_session_id)

    def end_session_soon(self, sampling_session_id: str, *, finished: bool) -> None:
        """The same where nobody waits for it."""
        task = asyncio.create_task(self.end_session(sampling_session_id, finished=finished))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def swept(self, swept: Swept) -> None:
        """The same of sessions that showed no life, and of those that are forgotten."""
        for sampler in swept.lapsed:
            self.end_session_soon(sampler.sampling_session_id, finished=False)
        for sampler in swept.forgotten:
            self.end_session_soon(sampler.sampling_session_id, finished=True)

    def make_room(self, blocked: Record | None, undelivered_by: float = float("inf")) -> int:
        """Drop some results for a queued record that has waited for room, and for the one of the
        last tick if it needs more; returns how many.

        undelivered_by: of those that were not fetched younger ones are left, their clients are
            about to.
        """
        record = self._making_room or blocked
        self._making_room = None
        if record is None or record.state is not State.QUEUED:
            return 0
        dropped = self._store.make_room(record, WORK_PER_TURN, undelivered_by)
        if dropped == WORK_PER_TURN:
            self._making_room = record
        return dropped

    def make_room_for(self, nbytes: int, undelivered_by: float) -> int:
        """The same for a submit of so many bytes."""
        budget = self._store.budget
        if not budget.could_fit(nbytes):
            return 0
        return self._store.drop_until(
            lambda: not budget.lacks_bytes(nbytes), WORK_PER_TURN, undelivered_by
        )

    def shed(self, nbytes: int, undelivered: bool) -> int:
        """Drop some results of about so many bytes, delivered ones first; returns how many.

        undelivered: whether also those that nobody was seen to get.
        """
        target = self._store.charged_bytes - nbytes
        return self._store.drop_until(
            lambda: self._store.charged_bytes <= target,
            WORK_PER_TURN,
            float("inf") if undelivered else float("-inf"),
        )

    def close(self) -> None:
        for task in self._ending:
            task.cancel()
