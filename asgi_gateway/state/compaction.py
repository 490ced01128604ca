"""Copying what is live into a segment that replaces all older ones.

The order on disk is what makes it safe: old segments, then the copies, then the tail that events
have gone to since the rotation. The copies come *before* the tail, whenever they are made. So an
event in the tail that ends something also ends its copy, one that was copied and is in the tail
too is there twice, which a replay allows, and the owner may hand out the events late.

A copy counts for nothing until it is complete: it is written under a name that is never read, made
durable, and renamed, from which moment the older segments count for nothing instead and can be
deleted at leisure. A crash at any moment leaves one or the other.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from asgi_gateway.state.directory import base_path, partial_path, segments, sync_directory
from asgi_gateway.state.events import Event, frame_into
from asgi_gateway.state.segment import Segment
from asgi_gateway.state.tally import Tally

# What the owner holds, as events: Booted, then each session (SessionMade, SessionFinished where it
# is) with its sampling sessions (SamplingMade, Joined), then each open sample in order of
# acceptance (Accepted). Drawn on over many turns of the loop, so events are made one by one from
# lists of references, and what is gone by the time its turn comes is best left out. `list` of a
# dict's values is such a list, 0.5 ms for 131,072; of its items it is not: that many new tuples
# bring on a full garbage collection.
Live = Callable[[], Iterator[Event]]


class Compaction:
    """One copy on its way; `copied`: all is written, `done`: it has replaced what was before it.

    old: the tally before it began. old_bytes: length of the segments that it will replace.
    counted_bytes: what of it is in the tally that has begun with it.
    """

    def __init__(
        self, directory: Path, number: int, live: Live, old: Tally, old_bytes: int
    ) -> None:
        """Begin the copy that gets this number. Raises OSError."""
        self._directory = directory
        self._number = number
        self._events = live()
        self._segment = Segment.create(partial_path(directory, number))
        self.old = old
        self.old_bytes = old_bytes
        self.counted_bytes = self._segment.nbytes
        self.copied = False
        self.done = False

    def __repr__(self) -> str:
        state = "done" if self.done else "copied" if self.copied else "copying"
        return f"<Compaction to {self._number}, {state}, {self.counted_bytes} bytes>"

    def copy_some(self, budget: int, tally: Tally) -> None:
        """Copy at most `budget` events, and count them in `tally`. Raises OSError."""
        buffer = bytearray()
        taken = 0
        for event in islice(self._events, budget):
            nbytes = frame_into(buffer, event)
            tally.add(event, nbytes)
            self.counted_bytes += nbytes
            taken += 1
        if buffer:
            self._segment.write(buffer)
        self.copied = taken < budget

    def replace_older(self) -> None:
        """Make the copy durable and delete what it replaces; may take long. Raises OSError."""
        os.fsync(self._segment.fd)
        path = base_path(self._directory, self._number)
        self._segment.path.rename(path)
        self._segment.path = path
        # Before the first deletion: after a power cut a directory must never have lost both.
        sync_directory(self._directory)
        _, idle = segments(self._directory)
        for older in idle:
            # What cannot be deleted is never read again, and tried again at the next start.
            with contextlib.suppress(OSError):
                older.unlink()
        self.done = True

    def close(self) -> None:
        """Let go of the file, and delete it where the copy was not completed."""
        self._segment.close()
        if not self.done:
            # A copy left behind is ignored, and deleted at the next start.
            with contextlib.suppress(OSError):
                partial_path(self._directory, self._number).unlink(missing_ok=True)
