"""The completion log of one poller: what settled, in order, and how far its client has read. Pure.

A client polls one log per (sampling session, clone) and hands back the cursor of the last answer.
Whatever is at or below that cursor has been seen and is dropped; whatever is above is reported
again, so a lost answer costs nothing.

Cursors of one process start above those of every process before it. One that lies outside this
process's range is from an earlier life, and its client is told everything that is still open: a
completion that is never reported would hang its sample for hours.
"""

from collections import deque
from collections.abc import Iterator

import msgspec


class Completion(msgspec.Struct, frozen=True, gc=False):
    """One settled sample; `nbytes` is the size of its result, None where it has none (failed)."""

    request_id: str
    nbytes: int | None


class Page(msgspec.Struct, frozen=True):
    """What one poll is answered with."""

    completions: list[Completion]
    cursor: int


class CompletionLog:
    """Completions in order; positions are consecutive and the first is `base` + 1."""

    __slots__ = ("_base", "_entries", "_last")

    def __init__(self, base: int) -> None:
        self._base = base
        self._last = base
        self._entries: deque[Completion] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<CompletionLog {len(self._entries)} unread, cursor {self._last}>"

    def append(self, completion: Completion) -> None:
        self._last += 1
        self._entries.append(completion)

    def seen(self, cursor: int) -> None:
        """Drop what the client has read: everything at or below a cursor of this process."""
        if self._base <= cursor <= self._last:
            for _ in range(max(0, len(self._entries) - (self._last - cursor))):
                self._entries.popleft()

    def page(self, limit: int) -> Page:
        """The oldest unread completions, at most `limit`, and the cursor after them."""
        taken = list(self._oldest(limit))
        return Page(taken, self._last - len(self._entries) + len(taken))

    def _oldest(self, limit: int) -> Iterator[Completion]:
        for index, completion in enumerate(self._entries):
            if index == limit:
                return
            yield completion
