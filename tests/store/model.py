"""What the rule-based machines of both stores know of one sample."""

from asgi_gateway.store.records import Record
from asgi_gateway.store.states import State
from tests.store.records import UNDELIVERED_S


class Expected:
    """One record by the model: its state, its parts of the charge, and when its clock ends."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.state = State.QUEUED
        self.body_bytes = len(record.body or b"")
        self.reserved_bytes = 0
        self.outcome_bytes = 0
        self.result_bytes = 0
        self.json_bytes = 0
        # Gone before its client was told.
        self.lost = False
        self.clock: tuple[str, float] | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.record.sampling_session_id, self.record.seq_id

    @property
    def charged_bytes(self) -> int:
        return self.body_bytes + self.reserved_bytes + self.outcome_bytes + self.json_bytes

    def settle(self, state: State, outcome_bytes: int, now: float) -> None:
        self.state = state
        self.body_bytes = self.reserved_bytes = 0
        self.outcome_bytes = outcome_bytes
        self.result_bytes = outcome_bytes if state is State.SUCCEEDED else 0
        self.clock = ("undelivered", now + UNDELIVERED_S)

    def gone(self, *, lost: bool = False) -> None:
        self.settle(State.GONE, 0, 0.0)
        self.json_bytes = 0
        self.clock = None
        self.lost = lost
