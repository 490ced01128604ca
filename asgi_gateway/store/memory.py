"""MemoryStore: the records in a dict, their clocks, their bytes, and who is parked for them.

Every change of a record's state goes through `_apply`, and so through the table. Verbs take `now`;
they return what happened and leave acting on it to the caller. That a sample was accepted and that
it is closed is told to the ledger, the journal where there is one.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from asgi_gateway.errors import Unsupported
from asgi_gateway.ledger import NOBODY, Ledger
from asgi_gateway.store import states
from asgi_gateway.store.budget import Budget
from asgi_gateway.store.expiry import Deadlines
from asgi_gateway.store.records import CANCELLED, Expired, Failure, Lost, Record
from asgi_gateway.store.states import SETTLED, TABLE, Event, State, after
from asgi_gateway.store.targets import Targets
from asgi_gateway.store.waiting import Waiting

# What a record takes beside its bytes, about; and so few that their dicts are copied in a moment.
RECORD_BYTES: Final = 512
FEW_RECORDS: Final = 4096
_EVER: Final = float("inf")


class MemoryStore:
    in_doubt: bool = False  # whether another process may have what is unfinished here

    def __init__(
        self,
        *,
        work_s: float,
        undelivered_s: float,
        delivered_s: float,
        max_in_flight: int,
        max_bytes: int,
        cursor_base: int = 0,
        ledger: Ledger = NOBODY,
    ) -> None:
        """Lifetimes in seconds (docs/behaviour.md); admission limits in samples and bytes.

        cursor_base: above every cursor that an earlier process gave out.
        """
        self._records: dict[str, Record] = {}
        self.targets = Targets(cursor_base)
        self.waiting = Waiting()
        self._work: Deadlines[Record] = Deadlines(work_s)
        self._undelivered: Deadlines[Record] = Deadlines(undelivered_s)
        self._delivered: Deadlines[Record] = Deadlines(delivered_s)
        self.budget = Budget(max_bytes, max_in_flight)
        self._ledger = ledger
        self.counts = [0] * len(State)
        self.results_bytes = 0
        self.late_events = [0] * len(Event)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        held = ", ".join(f"{self.counts[state]} {state.name.lower()}" for state in State)
        return f"<MemoryStore {held}, {self.charged_bytes} bytes>"

    @property
    def in_flight(self) -> int:
        """Accepted samples that are not settled."""
        return self.counts[states.QUEUED] + self.counts[states.RUNNING]

    @property
    def charged_bytes(self) -> int:
        """Bytes counted against `store.max_bytes`."""
        return self.budget.charged_bytes

    @property
    def undelivered(self) -> int:
        """Settled samples whose outcome nobody was seen to get."""
        return len(self._undelivered)

    @property
    def parked(self) -> int:
        """Polls held now, batched ones included."""
        return len(self.waiting) + self.targets.parked

    def reconfigure(self, undelivered_s: float, delivered_s: float) -> None:
        """Other lifetimes, for what is held too."""
        self._undelivered.lifetime_s = undelivered_s
        self._delivered.lifetime_s = delivered_s

    # --- accept ----------------------------------------------------------------------------------

    def find(self, request_id: str) -> Record | None:
        return self._records.get(request_id)

    def submitted(
        self, sampling_session_id: str, seq_id: int, digest: bytes
    ) -> Record | Lost | None:
        """The record of an earlier submit of the same sample, or the note that it was lost: then it
        is accepted again under the same id. Raises Unsupported where the same seq_id came with
        another body: 409 would be repeated blindly.
        """
        known = self.targets.known(sampling_session_id, seq_id)
        if known is not None and known.digest != digest:
            raise Unsupported(
                f"seq_id {seq_id} of this sampling session was submitted before with another body"
            )
        return known

    def admit(self, nbytes: int) -> None:
        """Whether one more sample of `nbytes` may come in. Raises Overloaded, TooLarge."""
        self.budget.admit(nbytes, self.counts[states.QUEUED] + self.counts[states.RUNNING])

    def accept(self, record: Record) -> None:
        """Take in a QUEUED record that `submitted` did not know and `admit` let pass."""
        self._records[record.request_id] = record
        self.targets.add(record)
        self.counts[states.QUEUED] += 1
        self.budget.charged_bytes += len(record.body or b"")
        self._ledger.accepted(record)

    # --- run -------------------------------------------------------------------------------------

    def has_room(self, record: Record) -> bool:
        """Whether the answer of a queued record may be reserved now. The only one running always
        may: a sample larger than the whole budget must not wait for ever."""
        if not self.counts[states.RUNNING]:
            return True
        return self.budget.charged_bytes + record.reserve_bytes <= self.budget.max_bytes

    def make_room(self, record: Record, budget: int, undelivered_by: float = _EVER) -> int:
        """Drop settled results until a record has room, none where all would not be enough."""
        if not self.budget.could_fit(record.reserve_bytes):
            return 0
        return self.drop_until(lambda: self.has_room(record), budget, undelivered_by)

    def drop_until(self, enough: Callable[[], bool], budget: int, undelivered_by: float) -> int:
        """Drop settled results, delivered and oldest first, undelivered ones only where they were
        settled by then; returns how many: they answer 410."""
        dropped = 0
        for clock in (self._delivered, self._undelivered):
            for oldest in clock.oldest(budget - dropped):
                if enough() or (clock is self._undelivered and oldest.settled_at > undelivered_by):
                    return dropped
                self.evict(oldest, told=clock is self._delivered)
                dropped += 1
        return dropped

    def start(self, record: Record, now: float) -> bool:
        """QUEUED -> RUNNING: starts the work clock and reserves room for the answer."""
        if not self._apply(record, states.START):
            return False
        self.budget.charged_bytes += record.reserve_bytes
        record.started_at = now
        record.attempts += 1
        self._work.start(record, now)
        return True

    def drop_prompt(self, record: Record) -> None:
        """The request will not be sent again: a 2xx answer began, or the run is over."""
        if record.body is not None:
            self.budget.charged_bytes -= len(record.body)
            record.body = None

    def retry(self, record: Record, now: float) -> bool:
        """RUNNING -> QUEUED: stops the work clock, gives the reservation back."""
        if not self._apply(record, states.RETRY):
            return False
        self.budget.charged_bytes -= record.reserve_bytes
        record.came_back(now)
        self._work.stop(record)
        return True

    # --- settle ----------------------------------------------------------------------------------

    def succeed(self, record: Record, result: bytes, now: float) -> bool:
        """RUNNING -> SUCCEEDED with the bytes that every delivery will send."""
        if not self._settle(record, states.SUCCEED, now):
            return False
        record.result = result
        self.budget.hold(len(result))
        self.results_bytes += len(result)
        return True

    def fail(self, record: Record, failure: Failure, now: float) -> bool:
        """QUEUED or RUNNING -> FAILED."""
        if not self._settle(record, states.FAIL, now):
            return False
        record.failure = failure
        self.budget.hold(len(failure.text))
        return True

    def cancel(self, record: Record, now: float) -> bool:
        """QUEUED or RUNNING -> CANCELLED."""
        if not self._settle(record, states.CANCEL, now):
            return False
        record.failure = CANCELLED
        return True

    def evict(self, record: Record, *, told: bool = True) -> bool:
        """Any state -> GONE: nothing is held any more and the id answers 410. told: whether the
        client knows or will never ask; if not, the id stays noted as lost."""
        before, charged_bytes = record.state, record.charged_bytes
        if not self._apply(record, states.EVICT):
            return False
        self.budget.charged_bytes -= charged_bytes
        if before in SETTLED:
            self.budget.settled_bytes -= charged_bytes
            if not self._delivered.stop(record):
                self._undelivered.stop(record)
        elif before is states.RUNNING:
            self._work.stop(record)
        if record.result is not None:
            self.results_bytes -= len(record.result)
        record.body = record.result = record.result_json = None
        del self._records[record.request_id]
        self.counts[states.GONE] -= 1
        if not told:
            self.targets.remember_lost(record.lost())
        self.targets.remove(record)
        if told:
            self._ledger.closed(record.request_id)
        return True

    # --- deliver ---------------------------------------------------------------------------------

    def delivered(self, record: Record, now: float) -> bool:
        """An answer with the outcome went out on an open connection; whether it was the first."""
        if record.state not in SETTLED:
            return False
        first = self._undelivered.stop(record)
        self._delivered.start(record, now)
        return first

    def keep_json(self, record: Record, body: bytes) -> None:
        """Keep the JSON form of a result for its next delivery."""
        if record.state is states.SUCCEEDED:
            self.budget.hold(len(body) - len(record.result_json or b""))
            record.result_json = body

    def acknowledge(self, request_ids: Iterable[str], caller: str) -> None:
        """The client has these outcomes: free them at once. Unknown ids are fine, repeats too."""
        for request_id in request_ids:
            record = self._records.get(request_id)
            if record is None:
                self.told_lost(request_id, caller)
            elif record.caller == caller and record.state in SETTLED:
                self.evict(record)

    def told_lost(self, request_id: str, caller: str) -> bool:
        """Whether an id was noted as lost; its client knows now."""
        if not self.targets.told_lost(request_id, caller):
            return False
        self._ledger.closed(request_id)
        return True

    def sweep(self, now: float, budget: int) -> Expired:
        """Drop results whose time is over, at most `budget` of a kind; name the overdue runs."""
        expired, fetched = self._undelivered.due(now, budget), self._delivered.due(now, budget)
        unfetched = sum(record.state is not states.CANCELLED for record in expired)
        evicted = sum(self.evict(record, told=False) for record in expired)
        evicted += sum(self.evict(record) for record in fetched)
        return Expired(self._work.due(now, budget), evicted, unfetched)

    # --- walks ------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """About what all records take in memory."""
        return self.charged_bytes + RECORD_BYTES * len(self._records)

    def shrink(self) -> None:
        """Give back the room of dicts that were large; they keep it when they are emptied."""
        if len(self._records) <= FEW_RECORDS:
            self._records = dict(self._records)
            self.targets.shrink()

    def records(self) -> list[Record]:
        return list(self._records.values())

    def awaited(self) -> int:
        """Undelivered outcomes; 0 where all that are left are of cancelled samples."""
        count = len(self._undelivered)
        if not 0 < count <= self.counts[states.CANCELLED]:
            return count
        return sum(r.state is not states.CANCELLED for r in self._undelivered.oldest(count))

    def is_open(self, request_id: str) -> bool:
        """Whether an id is held, or noted as lost: its client does not have the outcome."""
        return request_id in self._records or self.targets.is_lost(request_id)

    def unfinished(self) -> Iterator[Record]:
        return (r for r in list(self._records.values()) if r.state not in SETTLED)

    # --- inside ----------------------------------------------------------------------------------

    def _apply(self, record: Record, event: Event) -> bool:
        """Change the state; the caller changes the record, and what is charged for it."""
        before = record.state
        state = TABLE[before][event]
        if type(state) is not State:
            after(before, event)  # raises where it is a bug
            self.late_events[event] += 1
            return False
        self.counts[before] -= 1
        self.counts[state] += 1
        record.state = state
        return True

    def _settle(self, record: Record, event: Event, now: float) -> bool:
        """End the run: its request and the room for its answer are not charged any more."""
        ran = record.state is states.RUNNING
        if not self._apply(record, event):
            return False
        if ran:
            self.budget.charged_bytes -= record.reserve_bytes
            self._work.stop(record)
        self.drop_prompt(record)
        record.settled_at = now
        self._undelivered.start(record, now)
        return True
