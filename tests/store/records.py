"""Records and stores for the tests of the store, and a full picture of what a store holds."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from asgi_gateway.codec import Want
from asgi_gateway.store.completions import Completion
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Failure, Record
from asgi_gateway.store.states import Event, State
from tests.store.ids import made_id
from tests.store.shared import SharedStore

WORK_S, UNDELIVERED_S, DELIVERED_S = 2048.0, 2048.0, 300.0
START_AT, RESULT = 1000.0, b"r" * 7
FAILURE = Failure("no, not this", "user")
BODY_BYTES, RESERVED_BYTES = 40, 100  # of accepted()

CLOCKS = ("work", "undelivered", "delivered")

AnyStore = MemoryStore | SharedStore


class NewStore(Protocol):
    def __call__(self, *, max_in_flight: int = 1000, max_bytes: int = 1_000_000) -> AnyStore: ...


Verb = Callable[[AnyStore, Record, float], bool]
VERBS: dict[Event, Verb] = {
    Event.START: lambda store, record, now: store.start(record, now),
    Event.RETRY: lambda store, record, now: store.retry(record, now),
    Event.SUCCEED: lambda store, record, now: store.succeed(record, RESULT, now),
    Event.FAIL: lambda store, record, now: store.fail(record, FAILURE, now),
    Event.CANCEL: lambda store, record, now: store.cancel(record, now),
    Event.EVICT: lambda store, record, now: store.evict(record),
}
TO_STATE = {
    State.QUEUED: (),
    State.RUNNING: (Event.START,),
    State.SUCCEEDED: (Event.START, Event.SUCCEED),
    State.FAILED: (Event.START, Event.FAIL),
    State.CANCELLED: (Event.START, Event.CANCEL),
    State.GONE: (Event.START, Event.EVICT),
}
CHARGED = {
    State.QUEUED: BODY_BYTES,
    State.RUNNING: BODY_BYTES + RESERVED_BYTES,
    State.SUCCEEDED: len(RESULT),
    State.FAILED: len(FAILURE.text),
    State.CANCELLED: 0,
    State.GONE: 0,
}


def new_store(*, max_in_flight: int = 1000, max_bytes: int = 1_000_000) -> MemoryStore:
    return MemoryStore(
        work_s=WORK_S,
        undelivered_s=UNDELIVERED_S,
        delivered_s=DELIVERED_S,
        max_in_flight=max_in_flight,
        max_bytes=max_bytes,
    )


def new_record(
    seq_id: int = 0,
    *,
    session: str = "sampler-1",
    body: bytes = b"x" * 40,
    reserve: int = 100,
    digest: bytes = b"digest",
) -> Record:
    return Record(
        request_id=made_id(session),
        caller="caller",
        sampling_session_id=session,
        seq_id=seq_id,
        digest=digest,
        want=Want(),
        prompt_tokens=3,
        reserve_bytes=reserve,
        body=body,
        accepted_at=0.0,
    )


def accepted(store: AnyStore, seq_id: int = 0, **fields: Any) -> Record:
    record = new_record(seq_id, **fields)
    store.accept(record)
    return record


def brought_to(store: AnyStore, state: State, seq_id: int = 0) -> Record:
    record = accepted(store, seq_id)
    for event in TO_STATE[state]:
        assert VERBS[event](store, record, START_AT)
    assert record.state is state
    return record


def held_of(store: AnyStore, session: str) -> list[Record]:
    if isinstance(store, SharedStore):
        return store.held_of(session)
    return store.targets.records(session)


def is_lost(store: AnyStore, record: Record) -> bool:
    if isinstance(store, SharedStore):
        return store.is_lost(record.request_id)
    return store.targets.is_lost(record.request_id)


def reported(store: AnyStore, record: Record) -> None:
    """Have it written into its log; `Delivery` does so, the shared store by itself."""
    if isinstance(store, MemoryStore):
        assert list(store.targets.report(record)) == []


def page(
    store: AnyStore, session: str, clone: int, cursor: int, limit: int = 100
) -> tuple[list[Completion], int]:
    found = (store if isinstance(store, SharedStore) else store.targets).page(
        session, clone, cursor, limit
    )
    return list(found.completions), found.cursor


def clock_names(store: AnyStore) -> tuple[str, ...]:
    """How long a run may take is its owner's to watch: not in the shared store."""
    return CLOCKS if isinstance(store, MemoryStore) else CLOCKS[1:]


def clocks(store: AnyStore) -> dict[str, dict[str, float]]:
    """Clock -> request id -> when it ends."""
    if isinstance(store, SharedStore):
        return store.clocks()
    return {
        name: {record.request_id: due_at for record, due_at in clock}
        for name, clock in (
            ("work", store._work),
            ("undelivered", store._undelivered),
            ("delivered", store._delivered),
        )
    }


def picture(store: AnyStore, *records: Record) -> dict[str, Any]:
    """Everything that a verb could change, as plain values."""
    if isinstance(store, SharedStore):
        return {
            "records": [msgspec.structs.asdict(record) for record in records],
            "everything": store.everything(),
            "counts": store.counts,
            "charged_bytes": store.charged_bytes,
            "late_events": sum(store.late_events),
        }
    return {
        "records": [msgspec.structs.asdict(record) for record in records],
        "held": sorted(store._records),
        "index": {
            session: {seq_id: record.request_id for seq_id, record in target.by_seq.items()}
            for session, target in store.targets._targets.items()
        },
        "clocks": clocks(store),
        "counts": list(store.counts),
        "charged_bytes": store.charged_bytes,
        "results_bytes": store.results_bytes,
        "late_events": sum(store.late_events),
        "parked": store.parked,
    }
