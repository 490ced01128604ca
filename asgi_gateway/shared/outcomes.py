"""What the functions answer, as values."""

from collections.abc import Sized
from typing import Literal

import msgspec

from asgi_gateway.errors import GatewayError
from asgi_gateway.store.records import Failure
from asgi_gateway.store.states import State


class Fenced(GatewayError):
    """The process was taken for dead: what it held is lost or another's, and its epoch accepts and
    changes nothing any more. It goes on under a new one."""


class CorruptReply(GatewayError):
    """The shared store's server answered what no version of our functions does."""


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """fresh: it is the asker's to run, under `request_id`, which for a lost sample is its earlier
    one. Else it is there already, in `state` and owned by the epoch `owner`."""

    request_id: str
    fresh: bool
    state: State
    owner: str


class Moved(msgspec.Struct, frozen=True, gc=False):
    """ok: `state` is the new one. late: nothing changed, `state` is what it is. foreign: it is the
    epoch `owner`'s. missing: it is not held, or another caller's."""

    outcome: Literal["ok", "late", "foreign", "missing"]
    state: State | None = None
    owner: str = ""


class Found(msgspec.Struct, frozen=True, gc=False):
    """A sample; GONE is the note of a lost one. nbytes: of the result, or of what is charged for an
    unfinished one; accepted_ms: of the wall clock."""

    state: State
    owner: str
    sampling_session_id: str
    seq_id: int
    nbytes: int
    failure: Failure | None
    delivered: bool
    accepted_ms: int
    result: bytes | None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One line of a completion log. nbytes: of the result; None for one that failed or is lost."""

    request_id: str
    nbytes: int | None

    @property
    def result(self) -> Sized | None:
        """As large as the result; its bytes are fetched by their own poll."""
        return range(self.nbytes) if self.nbytes is not None else None


class Completions(msgspec.Struct, frozen=True):
    entries: list[Entry]
    cursor: int


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """Outcomes freed, and notes of lost samples dropped."""

    freed: int
    told: int


class Swept(msgspec.Struct, frozen=True, gc=False):
    """evicted: outcomes whose time was over; unfetched: those of them that nobody had fetched,
    without cancelled samples; notes: of lost samples; more: the limit was reached."""

    evicted: int
    unfetched: int
    notes: int
    more: bool


class Adopted(msgspec.Struct, frozen=True):
    """A sample of a dead owner, QUEUED and the asker's now."""

    request_id: str
    sampling_session_id: str
    seq_id: int
    digest: bytes
    caller: str
    accepted_ms: int
    nbytes: int
    body: bytes
    meta: bytes


class Buried(msgspec.Struct, frozen=True):
    """left: unfinished samples that another call is needed for."""

    left: int
    lost: int
    adopted: list[Adopted]


class Forgotten(msgspec.Struct, frozen=True, gc=False):
    """scan: to go on from, empty at the end. ended: samples."""

    scan: str
    ended: int


class Counts(msgspec.Struct, frozen=True, gc=False):
    """The books of one group."""

    nbytes: int
    unfinished: int
    settled: int
    lost: int
