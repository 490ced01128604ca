"""Records and stores for the tests of the store, and a full picture of what a store holds."""

import itertools
from typing import Any

import msgspec

from asgi_gateway.codec import Want
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record

WORK_S, UNDELIVERED_S, DELIVERED_S = 2048.0, 2048.0, 300.0
_numbers = itertools.count()


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
        request_id=f"id-{next(_numbers)}",
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


def accepted(store: MemoryStore, seq_id: int = 0, **fields: Any) -> Record:
    record = new_record(seq_id, **fields)
    store.accept(record)
    return record


def clocks(store: MemoryStore) -> dict[str, dict[str, float]]:
    """Clock -> request id -> when it ends."""
    return {
        name: {record.request_id: due_at for record, due_at in clock}
        for name, clock in (
            ("work", store._work),
            ("undelivered", store._undelivered),
            ("delivered", store._delivered),
        )
    }


def picture(store: MemoryStore, *records: Record) -> dict[str, Any]:
    """Everything that a verb could change, as plain values."""
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
