"""The journal: appended to on the hot path, compacted a little at a time, synced in a thread.

What the owner does, and when:

- `append` for each event; `flush` right before it answers an accept, and once per turn of the loop.
- `compact_some(live)` once per turn of the loop; nearly always it does nothing.
- once a second: `retry`, and `await asyncio.to_thread(journal.sync)` if `sync_wanted`, or always
  where `state.fsync` is `interval`. Without the former, a compaction never ends.
- `healthy` before it promises anything that has to survive; `close` at the end.

All but `sync` belong to one thread. Written is not synced: a record survives the end of the process
in any way (the kernel has it), while a power cut takes what was written since the last sync, or in
the last half minute or so where none is made.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

from asgi_gateway.state.compaction import Compaction, Live
from asgi_gateway.state.directory import DirectoryLock, segment_path, sync_directory
from asgi_gateway.state.events import HEADER_BYTES, Event, frame_into, frames_in
from asgi_gateway.state.health import Health
from asgi_gateway.state.reading import Found
from asgi_gateway.state.segment import Segment
from asgi_gateway.state.tally import Tally

MIN_DEAD_BYTES: Final = 8 * 2**20
# Events copied per call: about 0.5 ms.
COPY_BUDGET: Final = 512


class Journal:
    """Owns a state directory until `close`; made by `open_journal`.

    After a write failed, events are dropped until a whole new copy of what is live has been made:
    `retry` permits the attempt, `compact_some` makes it. So nothing piles up in memory, and nothing
    that was missed stays missing.

    lost_events: dropped since opening. found: what was wrong with the files at opening.
    """

    def __init__(
        self,
        directory: Path,
        lock: DirectoryLock,
        number: int,
        segment: Segment,
        found: Found,
        min_dead_bytes: int,
    ) -> None:
        self._directory = directory
        self._lock = lock
        self._segment = segment
        self._number = number
        # The number before the current segment's, if copies may be put there.
        self._reserved: int | None = None
        self._rotated_away: list[Segment] = []
        self._buffer = bytearray()
        self._tally = found.tally
        self._min_dead_bytes = min_dead_bytes
        self._compaction: Compaction | None = None
        self._health = Health(directory)
        self._stopped = False
        self._closed = False
        # Held while descriptors are used in, or closed under, the thread that syncs.
        self._syncing = threading.Lock()
        self._sync_fault: str | None = None
        self._names_changed = True
        self.found = found
        self.lost_events = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.failed or "healthy"
        return f"<Journal {self._directory}, {self.nbytes} bytes, {state}>"

    @property
    def failed(self) -> str | None:
        """Why what is appended now may not survive; None while it does."""
        return self._health.failed or self._sync_fault

    @property
    def healthy(self) -> bool:
        return self._health.failed is None and self._sync_fault is None

    @property
    def write_failures(self) -> int:
        """Writes, syncs and copies that failed."""
        return self._health.write_failures

    @property
    def sync_wanted(self) -> bool:
        """A compaction waits for `sync` to end it."""
        compaction = self._compaction
        if compaction is None or self._stopped or self._sync_fault is not None:
            return False
        return compaction.copied and not compaction.done

    @property
    def nbytes(self) -> int:
        """Bytes in all segments, what is not flushed included."""
        compaction = self._compaction
        old_bytes = compaction.old_bytes if compaction is not None and not compaction.done else 0
        return self._tally.total_bytes + old_bytes

    # --- the hot path ----------------------------------------------------------------------------

    def append(self, event: Event) -> None:
        """Add to what the next `flush` writes.

        Raises:
            OverflowError, UnicodeEncodeError: a value that no journal can hold; nothing was added.
        """
        if self._stopped:
            self.lost_events += 1
        else:
            self._tally.add(event, frame_into(self._buffer, event))

    def flush(self) -> None:
        """Hand everything appended to the kernel, in one write; never raises, see `healthy`."""
        if self._buffer:
            try:
                self._segment.write(self._buffer)
            except OSError as fault:
                self.lost_events += frames_in(self._buffer)
                self._tally.total_bytes -= len(self._buffer)
                self._fail(f"{self._segment.path.name}: {fault.strerror}")
            self._buffer.clear()

    # --- compaction ------------------------------------------------------------------------------

    def compact_some(self, live: Live, budget: int = COPY_BUDGET) -> None:
        """One step of a compaction, if one is due or under way: at most `budget` events.

        Never raises for the disk; what `live` raises ends the compaction and goes through.
        """
        self._heed_sync()
        compaction = self._compaction
        if compaction is None or self._stopped:
            wanted = self._health.failed is not None or self._tally.due(self._min_dead_bytes)
            if wanted and self._health.may_try:
                self._begin(live)
        elif compaction.done:
            self._end(compaction)
        elif not compaction.copied:
            self._copy(compaction, budget)

    def retry(self) -> None:
        """Permit one more attempt at what failed: at the first call, then ever more rarely."""
        self._heed_sync()
        self._health.retry()

    def _begin(self, live: Live) -> None:
        """Rotate where that is needed, and start copying with the next call."""
        # A sync under way uses our descriptors: the next turn is soon enough.
        if not self._syncing.acquire(blocking=False):
            return
        try:
            self.flush()
            if not self._health.may_try:
                return
            if self._compaction is not None:
                self._drop(self._compaction)
            if self._must_rotate():
                self._rotate()
            assert self._reserved is not None
            old_bytes = self._tally.total_bytes - self._segment.nbytes
            self._compaction = Compaction(
                self._directory, self._reserved, live, self._tally, old_bytes
            )
        except OSError as fault:
            self._health.give_up(str(fault))
        else:
            self._tally = Tally(self._segment.nbytes + self._compaction.counted_bytes)
            self._stopped = False
        finally:
            self._syncing.release()

    def _must_rotate(self) -> bool:
        """Whether copies may not be put before the current segment, whatever is in it.

        They may be put before one that was rotated to for copies that came to nothing: a disk that
        stays full shall not leave a file per attempt. But not where events of it were lost: the
        copies cannot end what lies behind them.
        """
        segment = self._segment
        lossy = self._stopped and segment.nbytes > HEADER_BYTES
        return self._reserved is None or segment.torn or lossy

    def _rotate(self) -> None:
        """Go on in a new segment, and reserve the number before it. Raises OSError."""
        segment = Segment.create(segment_path(self._directory, self._number + 2))
        if self._stopped:
            self._segment.close()
        else:
            # Its last records are not synced yet.
            self._rotated_away.append(self._segment)
        self._reserved = self._number + 1
        self._number += 2
        self._segment = segment
        self._tally.total_bytes += segment.nbytes
        self._names_changed = True

    def _copy(self, compaction: Compaction, budget: int) -> None:
        # What is copied never runs ahead of what is written.
        self.flush()
        if self._stopped:
            return
        whole = False
        try:
            compaction.copy_some(budget, self._tally)
            whole = True
        except OSError as fault:
            self._health.give_up(str(fault))
        finally:
            # Also where `live` raised: drawn on again, it would end at once and look complete.
            if not whole:
                self._drop(compaction)

    def _end(self, compaction: Compaction) -> None:
        """The copy has taken the place of the old segments."""
        compaction.close()
        self._compaction = self._reserved = None
        self._tally.settle()
        self._health.copied()

    def _drop(self, compaction: Compaction) -> None:
        """Go on with the old segments, as if the compaction had not been tried."""
        if not compaction.done:
            compaction.old.total_bytes = self.nbytes - compaction.counted_bytes
            self._tally = compaction.old
        compaction.close()
        self._compaction = None

    # --- syncing ---------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make what was flushed survive a power cut, and end a compaction that is `sync_wanted`.

        Takes as long as the disk does, so the owner calls it in a thread; the other methods may be
        called meanwhile. Never raises; what fails shows in `failed`.
        """
        with self._syncing:
            # A journal that stopped has nothing to sync, and has to find out no more.
            if self._closed or self._stopped:
                return
            rotated_away, self._rotated_away = self._rotated_away, []
            compaction = self._compaction
            try:
                if compaction is None or not compaction.copied:
                    for segment in rotated_away:
                        os.fsync(segment.fd)
                os.fsync(self._segment.fd)
                if self._names_changed:
                    self._names_changed = False
                    sync_directory(self._directory)
                if compaction is not None and compaction.copied and not compaction.done:
                    compaction.replace_older()
            except OSError as fault:
                # After a failed fsync the kernel may have forgotten the data; a second call would
                # succeed and mean nothing. Only a new copy helps.
                self._sync_fault = f"sync: {fault.strerror}"
            finally:
                for segment in rotated_away:
                    segment.close()

    def close(self) -> None:
        """Flush, end or drop what is under way, and let go of the directory. Waits for a sync."""
        self.flush()
        with self._syncing:
            if self._closed:
                return
            self._closed = self._stopped = True
            self._health.close()
            files = (self._compaction, *self._rotated_away, self._segment, self._lock)
            for file in files:
                # All was handed to the kernel before; there is nothing to do about it here.
                with contextlib.suppress(OSError):
                    if file is not None:
                        file.close()

    # --- failing ---------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        """What is appended from now on is lost, until a new copy is complete."""
        self._health.fail(reason)
        self._stopped = True

    def _heed_sync(self) -> None:
        """Take note of what failed in the other thread."""
        if self._sync_fault is not None:
            self._fail(self._sync_fault)
            # Nor may the current segment be relied on.
            self._sync_fault = self._reserved = None
