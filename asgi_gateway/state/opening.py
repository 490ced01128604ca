"""Opening the journal: own the directory, read what is there, repair the end, go on from it."""

from pathlib import Path

from asgi_gateway.state.directory import (
    DirectoryLock,
    segment_path,
    segments,
    unusable,
)
from asgi_gateway.state.journal import MIN_DEAD_BYTES, Journal
from asgi_gateway.state.reading import Found, check_versions, read_events
from asgi_gateway.state.recovery import Recovered, replay
from asgi_gateway.state.segment import Segment


def open_journal(
    directory: Path, *, min_dead_bytes: int = MIN_DEAD_BYTES
) -> tuple[Journal, Recovered]:
    """The journal of `directory`, created where there is none, and what it adds up to.

    A torn tail is cut off; of a damaged older segment, what is before the damage counts. Both are
    logged. Compaction begins at `min_dead_bytes`, or at as many as are live, whichever is more.

    Raises:
        StateLocked: the directory has an owner.
        StateVersion: a file is of another version; nothing was changed.
        StateUnusable: the operating system refused something.
    """
    lock = DirectoryLock(directory)
    try:
        return _open(directory, lock, min_dead_bytes)
    except OSError as fault:
        lock.close()
        raise unusable(directory, fault) from fault
    except BaseException:
        lock.close()
        raise


def _open(directory: Path, lock: DirectoryLock, min_dead_bytes: int) -> tuple[Journal, Recovered]:
    numbered, idle = segments(directory)
    paths = [path for _, path in numbered]
    # All of them before anything is changed.
    check_versions(paths)
    # What a compaction that was interrupted did not come to delete.
    for path in idle:
        path.unlink()
    found = Found()
    recovered = replay(read_events(paths, found))
    found.tally.settle(open_count=len(recovered.samples))
    if numbered:
        number, path = numbered[-1]
        segment = Segment.repair(path, found.tail_bytes)
        found.tally.total_bytes += segment.nbytes - found.tail_bytes
    else:
        number = 1
        segment = Segment.create(segment_path(directory, number))
        found.tally.total_bytes = segment.nbytes
    return Journal(directory, lock, number, segment, found, min_dead_bytes), recovered
