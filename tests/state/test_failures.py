"""A disk that refuses: nothing raises, nothing is corrupted, and all of it comes back."""

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asgi_gateway.state.journal import Journal
from asgi_gateway.state.opening import open_journal
from asgi_gateway.state.recovery import replay
from tests.state.owner import (
    Owner,
    fill_up,
    names,
    put,
    rebuild,
    recover,
    same,
    small_history,
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened, _ = open_journal(tmp_path)
    yield opened
    opened.close()


def failing_sync(fd: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


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


def failing_write() -> Callable[[int, bytes], int]:
    """An `os.write` that writes five bytes, and then fails."""
    write = os.write
    allowed = iter([5])

    def failing(fd: int, data: bytes) -> int:
        nbytes = next(allowed, 0)
        if not nbytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(fd, memoryview(data)[:nbytes])

    return failing


def no_truncate(fd: int, length: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_torn_write_is_taken_back(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = small_history()
    put(journal, events[:4])
    good_bytes = (tmp_path / "journal-000001.log").stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing_write())
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
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing_write())
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


def rotate_for_nothing(journal: Journal, owner: Owner) -> None:
    """A compaction that leaves nothing but a new segment, which the next one need not replace."""
    for event in owner.close("never") * 200:
        journal.append(event)
    journal.compact_some(owner.live)
    begun = journal._compaction
    assert begun is not None
    fill_up(begun._segment.fd)
    journal.compact_some(owner.live)
    assert journal.healthy
    assert not begun.copied


@pytest.mark.parametrize("events_before", [0, 1])
@pytest.mark.parametrize("torn", [False, True])
def test_a_segment_that_failed_is_not_what_copies_are_put_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events_before: int, torn: bool
) -> None:
    """They could not end what lies behind them, nor get past what is torn."""
    owner = Owner()
    journal, _ = open_journal(tmp_path, min_dead_bytes=1000)
    put(journal, small_history(owner))
    rotate_for_nothing(journal, owner)
    for _ in range(events_before):
        put(journal, owner.accept(next(iter(owner.sampling))))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing_write())
        if torn:
            patch.setattr(os, "ftruncate", no_truncate)
        put(journal, owner.close(next(reversed(owner.samples))))
    assert not journal.healthy
    rebuild(journal, owner)
    put(journal, owner.make_session())
    journal.close()
    assert same(recover(tmp_path), owner.recovered())


def test_a_failed_sync(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    put(journal, small_history(owner))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing_sync)
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


def test_a_segment_whose_sync_failed_is_left_behind(tmp_path: Path) -> None:
    owner = Owner()
    journal, _ = open_journal(tmp_path, min_dead_bytes=1000)
    put(journal, small_history(owner))
    rotate_for_nothing(journal, owner)
    fill_up(journal._segment.fd)
    journal.sync()
    assert journal.failed == "sync: Invalid argument"
    rebuild(journal, owner)
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


@pytest.mark.parametrize("broken", ["fsync", "write"])
def test_a_timer_that_syncs_does_not_put_off_the_next_attempt(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """As with `state.fsync = interval`."""
    owner = Owner()
    put(journal, small_history(owner))

    def seconds(count: int) -> None:
        for _ in range(count):
            put(journal, owner.make_session())
            journal.retry()
            for _ in range(5):
                journal.compact_some(owner.live)
            journal.sync()
            journal.compact_some(owner.live)

    # This one will never work again.
    fill_up(journal._segment.fd)
    with monkeypatch.context() as patch:
        patch.setattr(os, broken, failing_sync if broken == "fsync" else failing_write())
        seconds(5)
        assert not journal.healthy
    seconds(20)
    assert journal.failed is None
    journal.close()
    assert same(recover(tmp_path), owner.recovered())


def test_attempts_become_rare(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    put(journal, small_history(owner))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing_sync)
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
