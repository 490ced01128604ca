"""MemoryStore: the records in a dict, their clocks, their bytes, and who is parked for them.

Every change of a record's state goes through `_apply`, and so through the table. Verbs take `now`
and do no I/O; they return what happened and leave acting on it to the caller.
"""

from collections.abc import Iterator

import msgspec

from asgi_gateway.asgi import Waker
from asgi_gateway.errors import Overloaded, TooLarge, Unsupported
from asgi_gateway.store.expiry import Deadlines
from asgi_gateway.store.records import Failure, Record, Target
from asgi_gateway.store.states import SETTLED, Event, State, after


class Expired(msgspec.Struct, frozen=True):
    """What a sweep found: runs whose work clock ended, and how many results were dropped."""

    overdue: list[Record]
    evicted: int


class MemoryStore:
    def __init__(
        self,
        *,
        work_s: float,
        undelivered_s: float,
        delivered_s: float,
        max_in_flight: int,
        max_bytes: int,
    ) -> None:
        """Lifetimes in seconds (docs/behaviour.md); admission limits in samples and bytes."""
        self._records: dict[str, Record] = {}
        self._targets: dict[str, Target] = {}
        self._parked: dict[str, list[Waker]] = {}
        self._work: Deadlines[Record] = Deadlines(work_s)
        self._undelivered: Deadlines[Record] = Deadlines(undelivered_s)
        self._delivered: Deadlines[Record] = Deadlines(delivered_s)
        self._max_in_flight = max_in_flight
        self._max_bytes = max_bytes
        self.counts = [0] * len(State)
        self.charged_bytes = 0
        self.results_bytes = 0
        self.late_events = 0

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        held = ", ".join(f"{self.counts[state]} {state.name.lower()}" for state in State)
        return f"<MemoryStore {held}, {self.charged_bytes} bytes>"

    @property
    def in_flight(self) -> int:
        """Accepted samples that are not settled."""
        return self.counts[State.QUEUED] + self.counts[State.RUNNING]

    @property
    def parked(self) -> int:
        return sum(map(len, self._parked.values()))

    # --- accept ----------------------------------------------------------------------------------

    def find(self, request_id: str) -> Record | None:
        return self._records.get(request_id)

    def submitted(self, sampling_session_id: str, seq_id: int, digest: bytes) -> Record | None:
        """The record of an earlier submit of the same sample.

        Raises:
            Unsupported: the same seq_id came with another body; 409 would be repeated blindly.
        """
        target = self._targets.get(sampling_session_id)
        record = target.by_seq.get(seq_id) if target is not None else None
        if record is not None and record.digest != digest:
            raise Unsupported(
                f"seq_id {seq_id} of this sampling session was submitted before with another body"
            )
        return record

    def admit(self, nbytes: int) -> None:
        """Whether one more sample of `nbytes` may come in.

        Raises:
            Overloaded: it does not fit now.
            TooLarge: it would not fit into an empty store; 429 would be repeated for ever.
        """
        if nbytes > self._max_bytes:
            raise TooLarge(
                f"the sample has {nbytes} bytes, all samples together may have {self._max_bytes}"
                " (store.max_bytes)"
            )
        if self.in_flight >= self._max_in_flight:
            raise Overloaded(f"{self.in_flight} samples in flight, the limit (store.max_in_flight)")
        if self.charged_bytes + nbytes > self._max_bytes:
            raise Overloaded(
                f"{self.charged_bytes} bytes held and {nbytes} more asked,"
                f" the limit is {self._max_bytes} (store.max_bytes)"
            )

    def accept(self, record: Record) -> None:
        """Take in a record that `submitted` did not know and `admit` let pass."""
        self._records[record.request_id] = record
        target = self._targets.setdefault(record.sampling_session_id, Target())
        target.by_seq[record.seq_id] = record
        self.counts[record.state] += 1
        self._charge(record, len(record.body or b""))

    # --- run -------------------------------------------------------------------------------------

    def has_room(self, record: Record) -> bool:
        """Whether the answer of a queued record may be reserved now.

        The only one running always may: a sample larger than the whole budget must not wait for
        ever.
        """
        if not self.counts[State.RUNNING]:
            return True
        return self.charged_bytes + record.reserve_bytes <= self._max_bytes

    def start(self, record: Record, now: float) -> bool:
        """QUEUED -> RUNNING: starts the work clock and reserves room for the answer."""
        if not self._apply(record, Event.START):
            return False
        record.started_at = now
        record.attempts += 1
        self._work.start(record, now)
        self._charge(record, record.reserve_bytes)
        return True

    def drop_prompt(self, record: Record) -> None:
        """The upstream began a 2xx answer: the request will not be sent again."""
        if record.body is not None:
            self._charge(record, -len(record.body))
            record.body = None

    def retry(self, record: Record) -> bool:
        """RUNNING -> QUEUED: stops the work clock, gives the reservation back."""
        if not self._apply(record, Event.RETRY):
            return False
        self._work.stop(record)
        self._charge(record, -record.reserve_bytes)
        return True

    # --- settle ----------------------------------------------------------------------------------

    def succeed(self, record: Record, result: bytes, now: float) -> bool:
        """RUNNING -> SUCCEEDED with the bytes that every delivery will send."""
        if not self._apply(record, Event.SUCCEED):
            return False
        record.result = result
        self._settle(record, now, len(result))
        self.results_bytes += len(result)
        return True

    def fail(self, record: Record, failure: Failure, now: float) -> bool:
        """QUEUED or RUNNING -> FAILED."""
        if not self._apply(record, Event.FAIL):
            return False
        record.failure = failure
        self._settle(record, now, len(failure.text))
        return True

    def cancel(self, record: Record, now: float) -> bool:
        """QUEUED or RUNNING -> CANCELLED."""
        if not self._apply(record, Event.CANCEL):
            return False
        record.failure = Failure("the sample was cancelled", "user")
        self._settle(record, now, 0)
        return True

    def evict(self, record: Record) -> bool:
        """Any state -> GONE: nothing is held any more and the id answers 410."""
        if not self._apply(record, Event.EVICT):
            return False
        self._work.stop(record)
        self._undelivered.stop(record)
        self._delivered.stop(record)
        self._charge(record, -record.charged_bytes)
        if record.result is not None:
            self.results_bytes -= len(record.result)
        record.body = record.result = None
        del self._records[record.request_id]
        self.counts[State.GONE] -= 1
        target = self._targets[record.sampling_session_id]
        if target.by_seq.get(record.seq_id) is record:
            del target.by_seq[record.seq_id]
            if not target.by_seq:
                del self._targets[record.sampling_session_id]
        return True

    # --- deliver ---------------------------------------------------------------------------------

    def delivered(self, record: Record, now: float) -> None:
        """An answer with the outcome went out on a connection that was still open."""
        if record.state in SETTLED:
            self._undelivered.stop(record)
            self._delivered.start(record, now)

    def of_session(self, sampling_session_id: str) -> list[Record]:
        target = self._targets.get(sampling_session_id)
        return list(target.by_seq.values()) if target is not None else []

    def sweep(self, now: float, budget: int) -> Expired:
        """Drop results whose time is over, at most `budget` of a kind; name the overdue runs."""
        evicted = 0
        for clock in (self._undelivered, self._delivered):
            for record in clock.due(now, budget):
                evicted += self.evict(record)
        return Expired(self._work.due(now, budget), evicted)

    # --- waiters ---------------------------------------------------------------------------------

    def park(self, record: Record, waker: Waker) -> None:
        self._parked.setdefault(record.request_id, []).append(waker)

    def unpark(self, record: Record, waker: Waker) -> None:
        waiters = self._parked.get(record.request_id)
        if waiters is not None and waker in waiters:
            waiters.remove(waker)
            if not waiters:
                del self._parked[record.request_id]

    def waiters(self, record: Record) -> list[Waker]:
        """Those parked for a record; it is theirs to unpark."""
        return list(self._parked.get(record.request_id, ()))

    def unfinished(self) -> Iterator[Record]:
        return (r for r in list(self._records.values()) if r.state not in SETTLED)

    # --- inside ----------------------------------------------------------------------------------

    def _apply(self, record: Record, event: Event) -> bool:
        state = after(record.state, event)
        if state is None:
            self.late_events += 1
            return False
        self.counts[record.state] -= 1
        self.counts[state] += 1
        record.state = state
        return True

    def _settle(self, record: Record, now: float, nbytes: int) -> None:
        self._work.stop(record)
        record.body = None
        record.settled_at = now
        self._charge(record, nbytes - record.charged_bytes)
        self._undelivered.start(record, now)

    def _charge(self, record: Record, nbytes: int) -> None:
        record.charged_bytes += nbytes
        self.charged_bytes += nbytes
