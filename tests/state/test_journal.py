"""Appending, and a disk that refuses: nothing raises, nothing is corrupted, all comes back."""

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asgi_gateway.state.events import HEADER_BYTES, Booted, Event, Joined
from asgi_gateway.state.journal import Journal
from asgi_gateway.state.opening import open_journal
from asgi_gateway.state.recovery import Recovered, replay
from tests.state.owner import Owner, names, recover, same, small_history


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened, _ = open_journal(tmp_path)
    yield opened
    opened.close()


def put(journal: Journal, events: list[Event]) -> None:
    for event in events:
        journal.append(event)
    journal.flush()


def fill_up(fd: int) -> None:
    """Every write to `fd` fails with ENOSPC, and cannot be taken back, from now on."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, fd)
    os.close(full)


def rebuild(journal: Journal, owner: Owner) -> None:
    """What the owner's timer and turns do."""
    for _ in range(100):
        journal.retry()
        journal.compact_some(owner.live, budget=5)
        if journal.sync_wanted:
            journal.sync()
    assert journal.healthy, journal.failed


# --- appending -----------------------------------------------------------------------------------


def test_one_write_per_flush(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    write = os.write

    def counting(fd: int, data: bytes) -> int:
        writes.append(len(data))
        return write(fd, data)

    monkeypatch.setattr(os, "write", counting)
    events = small_history()
    for event in events:
        journal.append(event)
    assert (tmp_path / "journal-000001.log").stat().st_size == HEADER_BYTES
    journal.flush()
    journal.flush()
    assert len(writes) == 1
    assert (tmp_path / "journal-000001.log").stat().st_size == journal.nbytes
    journal.close()
    assert recover(tmp_path) == replay(events)


def test_short_writes_are_continued(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:7]))
    events = small_history()
    put(journal, events[:5])
    put(journal, events[5:])
    assert journal.healthy
    journal.close()
    assert recover(tmp_path) == replay(events)


def test_what_no_journal_can_hold_is_the_callers_fault(journal: Journal, tmp_path: Path) -> None:
    journal.append(Booted("a", 1))
    with pytest.raises(OverflowError):
        journal.append(Joined("sampler", 2**64))
    journal.append(Booted("b", 2))
    journal.close()
    assert recover(tmp_path).epochs == ["a", "b"]


def test_close(journal: Journal, tmp_path: Path) -> None:
    journal.append(Booted("a", 1))
    journal.close()
    assert repr(journal) == f"<Journal {tmp_path}, {journal.nbytes} bytes, closed>"
    # Late calls, from a timer that was still running, find it quiet.
    journal.close()
    put(journal, [Booted("b", 1)])
    journal.sync()
    journal.retry()
    journal.compact_some(Owner().live)
    assert journal.lost_events == 1
    assert recover(tmp_path).epochs == ["a"]


# --- a disk that refuses -------------------------------------------------------------------------


def test_full_disk(journal: Journal, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    put(journal, small_history(owner))
    before = len(owner.samples)
    fill_up(journal._segment.fd)
    sampler = next(iter(owner.sampling))
    for _ in range(3):
        put(journal, owner.accept(sampler) + owner.accept(sampler))
    assert not journal.healthy
    assert journal.failed == "journal-000001.log: No space left on device"
    assert (journal.write_failures, journal.lost_events) == (1, 6)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    # Without the owner's leave nothing is tried again, however many turns there are.
    for _ in range(10):
        journal.compact_some(owner.live)
    assert names(tmp_path) == ["journal-000001.log"]
    assert len(owner.samples) == before + 6
    rebuild(journal, owner)
    assert "is whole again" in caplog.text
    put(journal, owner.close(next(iter(owner.samples))))
    journal.close()
    assert same(recover(tmp_path), owner.recovered())
    assert names(tmp_path) == ["journal-000002.base", "journal-000003.log"]


def test_a_torn_write_is_taken_back(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = small_history()
    put(journal, events[:4])
    good_bytes = (tmp_path / "journal-000001.log").stat().st_size
    write = os.write
    allowed = iter([5, 6])

    def failing(fd: int, data: bytes) -> int:
        nbytes = next(allowed, 0)
        if not nbytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(fd, memoryview(data)[:nbytes])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing)
        put(journal, events[4:])
    assert journal.failed == "journal-000001.log: Input/output error"
    assert journal.lost_events == len(events) - 4
    assert (tmp_path / "journal-000001.log").stat().st_size == good_bytes
    journal.close()
    assert recover(tmp_path) == replay(events[:4])


def test_a_torn_write_that_cannot_be_taken_back(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner()
    put(journal, small_history(owner))
    write = os.write
    allowed = iter([5])

    def failing(fd: int, data: bytes) -> int:
        nbytes = next(allowed, 0)
        if not nbytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(fd, memoryview(data)[:nbytes])

    def no_truncate(fd: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing)
        patch.setattr(os, "ftruncate", no_truncate)
        put(journal, owner.make_session())
    assert not journal.healthy
    journal.retry()
    journal.compact_some(owner.live)
    # The tail is a file of its own, which what was torn cannot reach.
    put(journal, owner.make_session())
    journal.close()
    known = recover(tmp_path).sessions
    assert [s in known for s in owner.sessions] == [True, True, True, False, True]


def test_a_failed_sync(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    put(journal, small_history(owner))

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        journal.sync()
        assert not journal.healthy
        assert journal.failed == "sync: Input/output error"
        # The rebuild meets the same disk.
        for _ in range(3):
            for _ in range(20):
                journal.retry()
                journal.compact_some(owner.live)
            assert journal.sync_wanted
            journal.sync()
            journal.compact_some(owner.live)
            assert not journal.healthy
    rebuild(journal, owner)
    put(journal, owner.make_session())
    journal.close()
    assert same(recover(tmp_path), owner.recovered())


def test_an_outage_leaves_no_heap_of_files(
    journal: Journal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner()
    put(journal, small_history(owner))
    for _ in range(50):
        fill_up(journal._segment.fd)
        put(journal, owner.make_session())
        journal.retry()
        journal.compact_some(owner.live)
        if journal._compaction is not None:
            fill_up(journal._compaction._segment.fd)
        journal.compact_some(owner.live)
    for _ in range(50):
        # The tail can be written to, and the copy cannot.
        journal.retry()
        journal.compact_some(owner.live)
        if journal._compaction is not None:
            fill_up(journal._compaction._segment.fd)
        journal.compact_some(owner.live)
        put(journal, owner.make_session())
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1
    rebuild(journal, owner)
    assert len(names(tmp_path)) == 2
    journal.close()
    assert same(recover(tmp_path), owner.recovered())


def test_attempts_become_rare(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    put(journal, small_history(owner))

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        journal.sync()
        attempts = []
        for second in range(100):
            journal.retry()
            for _ in range(5):
                journal.compact_some(owner.live)
                if journal.sync_wanted:
                    attempts.append(second)
                    journal.sync()
    assert attempts == [0, 2, 6, 14, 30, 46, 62, 78, 94]


def test_a_real_limit_on_file_size(tmp_path: Path) -> None:
    """The kernel itself writes the first half of a record and refuses the second."""
    command = [sys.executable, "-m", "tests.state.limited", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert lines["failed"] == "journal-000001.log: File too large"
    assert lines["size when failed"] == lines["good bytes"]
    assert lines["recovered when failed"] == lines["flushed when failed"]
    assert lines["healthy in the end"] == "True"
    assert len(recover(tmp_path).sessions) == int(lines["sessions in the end"])


def test_nothing_was_opened_that_is_not_closed(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    owner = Owner()
    journal, recovered = open_journal(tmp_path, min_dead_bytes=0)
    assert recovered == Recovered()
    put(journal, small_history(owner))
    for _ in range(5):
        put(journal, owner.make_session() + owner.close("never") * 500)
        rebuild(journal, owner)
    journal.compact_some(owner.live)
    journal.close()
    assert set(os.listdir("/proc/self/fd")) == before
