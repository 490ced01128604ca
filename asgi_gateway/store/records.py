"""What is kept of a sample: its record while it is held, and a note of it once it is lost."""

from typing import ClassVar, Final

import msgspec

from asgi_gateway.codec import Want
from asgi_gateway.errors import Category
from asgi_gateway.store.states import FAILED, QUEUED, RUNNING, SUCCEEDED, State

# A cloned client counts its seq_ids from clone * 1e9; 0 is the original.
SEQ_IDS_PER_CLONE: Final = 1_000_000_000


def clone_of(seq_id: int) -> int:
    return seq_id // SEQ_IDS_PER_CLONE


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why a sample has no result: text for the user, whose fault it was."""

    text: str
    category: Category


CANCELLED: Final = Failure("the sample was cancelled", "user")


class Lost(msgspec.Struct, frozen=True, gc=False):
    """A sample that is gone and whose client has not been told: an interrupted one, or one that was
    open when an earlier process died. Its id answers 410; a repeated submit revives it."""

    request_id: str
    caller: str
    sampling_session_id: str
    seq_id: int
    digest: bytes

    result: ClassVar[None] = None


class Record(msgspec.Struct, eq=False, gc=False, kw_only=True):
    """One sample from accept to eviction.

    gc=False keeps 131,072 of them out of the collector's way (5 ms a full pass against 46 ms);
    it is safe because a record refers to no container that could lead back to it.

    Times are seconds of the monotonic clock. `started_at` is 0 where it is not at the upstream;
    `upstream_s` is the time of the runs that came back, `upstream` the URL of the last run. `body`
    is the upstream request and is dropped at the first byte of a 2xx answer.
    """

    # of the request
    request_id: str
    caller: str
    sampling_session_id: str
    seq_id: int
    digest: bytes
    want: Want
    prompt_tokens: int
    reserve_bytes: int
    body: bytes | None
    accepted_at: float

    # of its run
    state: State = QUEUED
    started_at: float = 0.0
    upstream_s: float = 0.0
    attempts: int = 0
    upstream: str = ""
    unavailable_since: float | None = None
    unavailable_count: int = 0
    engine_faults: int = 0
    reads_failed: int = 0

    # of its outcome
    settled_at: float = 0.0
    result: bytes | None = None
    result_json: bytes | None = None
    failure: Failure | None = None

    @property
    def charged_bytes(self) -> int:
        """What counts against the byte budget: what is held, and while it runs its answer's room.

        Not stored: 131,072 of these numbers are 4 MiB.
        """
        state = self.state
        if state is QUEUED:
            return len(self.body) if self.body is not None else 0
        if state is RUNNING:
            return self.reserve_bytes + (len(self.body) if self.body is not None else 0)
        if state is SUCCEEDED:
            kept = len(self.result) if self.result is not None else 0
            return kept + (len(self.result_json) if self.result_json is not None else 0)
        if state is FAILED and self.failure is not None:
            return len(self.failure.text)
        return 0

    def came_back(self, now: float) -> None:
        """Its run ended and did not settle it."""
        self.upstream_s += now - self.started_at
        self.started_at = 0.0

    def lost(self) -> Lost:
        """The note that stays when the record goes before its client knows."""
        return Lost(
            self.request_id, self.caller, self.sampling_session_id, self.seq_id, self.digest
        )


class Expired(msgspec.Struct, frozen=True):
    """What a sweep found: runs whose work clock ended, how many results were dropped, and how many
    of these nobody had fetched, without cancelled samples."""

    overdue: list[Record]
    evicted: int
    unfetched: int
