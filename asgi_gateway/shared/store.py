"""ValkeyStore: a MemoryStore of what this process runs, told to the shared store as it happens.

The records here are those that this process accepted. Everything that another process may ask
about them is in the shared store before a client hears of it: that a sample was accepted, before
its id goes out; what became of it, before a batched poll names it. A poll that is parked here is
answered from here at once, and what the shared store holds is kept here for a short while only.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from asgi_gateway.shared.accepting import Accepting
from asgi_gateway.shared.groups import group_of_session
from asgi_gateway.shared.outbox import Outbox
from asgi_gateway.shared.outcomes import Fenced
from asgi_gateway.shared.verbs import Verbs
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Expired, Failure, Record
from asgi_gateway.store.states import GONE, QUEUED, RUNNING, SETTLED

# What the shared store has is kept here too for so long, for polls that come to this process.
LOCAL_S: Final = 10.0
# Told again in one tick of what the shared store did not hear.
AGAIN_PER_TICK: Final = 512


class ValkeyStore(MemoryStore):
    def __init__(
        self,
        verbs: Verbs,
        *,
        degrade: bool,
        adoptable: bool,
        fenced: Callable[[], None],
        doubtful: Callable[[], bool],
        **limits: Any,
    ) -> None:
        """degrade: samples are taken in also where the shared store does not answer, and told to it
        later. adoptable: see `adopt`. fenced: called when it took this process for dead. doubtful:
        whether it may have, and was not asked. limits: as MemoryStore's."""
        self._undelivered_s = limits["undelivered_s"]
        super().__init__(**{**limits, "undelivered_s": LOCAL_S, "delivered_s": LOCAL_S})
        self._verbs = verbs
        self._fenced = fenced
        self._doubtful = doubtful
        # Groups of submits that the shared store may have taken in, under whatever id.
        self.unheard: set[int] = set()
        self.accepting = Accepting(verbs, self, degrade=degrade, adoptable=adoptable, fenced=fenced)
        self.outbox = Outbox(verbs, fenced=fenced, overtaken=self._drop, unknown=self._tell_anew)
        self._enqueue: Callable[[Record], None]
        self._withdrawn: Callable[[Record], None]
        self._renamed: Callable[[Record, str], None]

    def reconfigure(self, undelivered_s: float, delivered_s: float) -> None:
        """Other lifetimes, of what is settled or delivered from now on."""
        self._undelivered_s = undelivered_s
        self._verbs.lifetimes = self._verbs.lifetimes.but(undelivered_s, delivered_s)

    @property
    def in_doubt(self) -> bool:  # type: ignore[override]  # nobody sets it
        return self._doubtful()

    def awaited(self) -> int:
        """What another process can deliver holds up no end of this one."""
        return len(self.outbox.unwritten) + len(self.accepting.unshared)

    # --- accept ----------------------------------------------------------------------------------

    def beginning(
        self,
        enqueue: Callable[[Record], None],
        withdrawn: Callable[[Record], None],
        renamed: Callable[[Record, str], None],
    ) -> Callable[[Record], None]:
        self._enqueue, self._withdrawn, self._renamed = enqueue, withdrawn, renamed
        return self.accepting.ask

    def taken_in(self, record: Record, request_id: str) -> None:
        before = record.request_id
        if before != request_id:
            if record.state is not GONE:
                self._records[request_id] = self._records.pop(before)
            record.request_id = request_id
            self._renamed(record, before)
        if record.state is QUEUED:
            self._enqueue(record)
        else:
            self.shared_now(record)

    def shared_now(self, record: Record) -> None:
        if record.state in SETTLED:
            self.outbox.outcome(record)
        elif record.state is GONE:  # its session ended meanwhile, say
            self.outbox.end(record.request_id, told=False)

    def found(self, record: Record, request_id: str) -> None:
        self._withdraw(record)
        record.request_id = request_id

    def turned_away(self, record: Record, *, unheard: bool) -> None:
        self._withdraw(record)
        if unheard:
            self.outbox.end_later(record.request_id)
            self.unheard.add(group_of_session(record.sampling_session_id))

    def adopt(self, record: Record) -> None:
        """Run a sample of a process that died; the shared store says that it is ours."""
        MemoryStore.accept(self, record)
        self._enqueue(record)

    def _withdraw(self, record: Record) -> None:
        if record.state is not GONE:  # else its session ended meanwhile, and it was settled
            self._withdrawn(record)
        self._drop(record)

    def tell_everything(self) -> None:
        """The shared store has lost what it knew."""
        for record in self._records.values():
            if record.request_id not in self.accepting:
                self._tell_anew(record)

    def _tell_anew(self, record: Record) -> None:
        """The shared store has lost what it knew of it."""
        self.outbox.forget(record)
        self.accepting.unshared[record.request_id] = record

    def confirm(self, request_id: str) -> bool:
        record = self._records.get(request_id)
        if record is not None and record.state in SETTLED and request_id not in self.accepting:
            if request_id not in self.outbox.unwritten:
                self.outbox.outcome(record)
            return True
        return record is not None or request_id in self.accepting

    def disown(self, request_id: str) -> None:
        self.outbox.end(request_id, told=False)

    # --- run and settle --------------------------------------------------------------------------

    def start(self, record: Record, now: float) -> bool:
        if not super().start(record, now):
            return False
        self.outbox.started(record, now)
        return True

    def retry(self, record: Record, now: float) -> bool:
        if not super().retry(record, now):
            return False
        self.outbox.came_back(record)
        return True

    def succeed(self, record: Record, result: bytes, now: float) -> bool:
        return super().succeed(record, result, now) and self._settled(record)

    def fail(self, record: Record, failure: Failure, now: float) -> bool:
        return super().fail(record, failure, now) and self._settled(record)

    def cancel(self, record: Record, now: float) -> bool:
        return super().cancel(record, now) and self._settled(record)

    def _settled(self, record: Record) -> bool:
        if record.request_id not in self.accepting:  # else once it is known there
            self.outbox.outcome(record)
        return True

    def evict(self, record: Record, *, told: bool = True) -> bool:
        """Let go of it here; everywhere, if it is unfinished or only this process has it."""
        unfinished = record.state is QUEUED or record.state is RUNNING
        if not super().evict(record):
            return False
        unwritten = self.outbox.forget(record)
        if self.accepting.unshared.pop(record.request_id, None) is None and (
            (unfinished and record.request_id not in self.accepting) or unwritten
        ):
            self.outbox.end(record.request_id, told=told)
        return True

    def _drop(self, record: Record) -> None:
        """Let go of it here alone: it is another process's, or in the shared store."""
        self.outbox.forget(record)
        self.accepting.unshared.pop(record.request_id, None)
        super().evict(record)

    # --- deliver ---------------------------------------------------------------------------------

    def delivered(self, record: Record, now: float) -> bool:
        if record.state not in SETTLED:
            return False
        self.outbox.delivered(record.request_id, now)
        if self._records.get(record.request_id) is record:
            return super().delivered(record, now)
        return True

    def keep_json(self, record: Record, body: bytes) -> None:
        if self._records.get(record.request_id) is record:
            super().keep_json(record, body)
        else:
            record.result_json = body

    def acknowledge(self, request_ids: Iterable[str], caller: str) -> None:
        request_ids = list(request_ids)
        for request_id in request_ids:
            self.outbox.acknowledged(request_id)
            record = self._records.get(request_id)
            if record is not None and record.caller == caller and record.state in SETTLED:
                self._drop(record)
        for command in self._verbs.acknowledge(request_ids, caller):
            self.outbox.acknowledge(command)

    def told_lost(self, request_id: str, caller: str) -> bool:  # noqa: ARG002
        """Notes are in the shared store alone, where the look-up that follows finds them."""
        return False

    def told_gone(self, request_id: str, caller: str) -> None:
        for command in self._verbs.told(request_id, caller):
            self._verbs.send(command, self._noted)

    def _noted(self, answer: object) -> None:
        if isinstance(answer, Fenced):
            self._fenced()

    # --- time ------------------------------------------------------------------------------------

    def sweep(self, now: float, budget: int) -> Expired:
        """Let go of what the shared store has."""
        for clock in (self._undelivered, self._delivered):
            for record in clock.due(now, budget):
                if record.request_id not in self.outbox.unwritten and (
                    record.request_id not in self.accepting
                ):
                    self._drop(record)
                elif now - record.settled_at < self._undelivered_s:
                    clock.start(record, now)
                else:
                    self.evict(record, told=False)
        self.outbox.tick(now, budget)
        return Expired(self._work.due(now, budget), 0, 0)

    def again(self) -> bool:
        """Tell some of what the shared store did not hear, while it answers; whether that is not
        all."""
        more = len(self.accepting.unshared) > AGAIN_PER_TICK
        self.accepting.again(AGAIN_PER_TICK)
        return self.outbox.again(AGAIN_PER_TICK) or more
