"""The completion log of one poller: what settled, in order, and how far its client has read. Pure.

A client polls one log per (sampling session, clone) and hands back the cursor of the last answer.
Whatever is at or below that cursor has been seen and is dropped; whatever is above is reported
again, so a lost answer costs nothing.

Cursors of one process start above those of every process before it. One that lies outside this
process's range is from an earlier life, and its client is told everything that is still open: a
completion that is never reported would hang its sample for hours.
"""

from collections import deque
from collections.abc import Sequence, Sized
from itertools import islice
from typing import Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Completion(Protocol):
    """One sample that settled or was lost: finished where it has a result, else failed; its client
    then fetches the error, or meets the 410."""

    @property
    def request_id(self) -> str: ...

    @property
    def result(self) -> Sized | None:
        """Only its size is told."""


class Page(msgspec.Struct, frozen=True):
    """What one poll is answered with; `more`: none was found yet, and more is to be looked at."""

    completions: Sequence[Completion]
    cursor: int
    more: bool = False


class CompletionLog(Generic[T]):
    """What completed, in order; positions are consecutive and the first is `base` + 1.

    It keeps what it is given as it is; what is told of each is written when it is told.
    """

    __slots__ = ("_base", "_entries", "_last")

    def __init__(self, base: int) -> None:
        self._base = base
        self._last = base
        self._entries: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<CompletionLog {len(self._entries)} unread, cursor {self._last}>"

    def append(self, entry: T) -> None:
        self._last += 1
        self._entries.append(entry)

    def seen(self, cursor: int) -> None:
        """Drop what the client has read: everything at or below a cursor of this process."""
        if self._base <= cursor <= self._last:
            for _ in range(max(0, len(self._entries) - (self._last - cursor))):
                self._entries.popleft()

    def oldest(self, limit: int) -> tuple[list[T], int]:
        """The oldest unread entries, at most `limit`, and the cursor after them."""
        taken = list(islice(self._entries, limit))
        return taken, self._last - len(self._entries) + len(taken)
