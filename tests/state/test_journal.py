"""Appending and flushing, and what is let go of at the end."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from asgi_gateway.state.events import HEADER_BYTES, Booted, Joined
from asgi_gateway.state.journal import Journal
from asgi_gateway.state.opening import open_journal
from asgi_gateway.state.recovery import Recovered, replay
from tests.state.owner import (
    Owner,
    fill_up,
    put,
    rebuild,
    recover,
    small_history,
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened, _ = open_journal(tmp_path)
    yield opened
    opened.close()


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


def test_nothing_was_opened_that_is_not_closed(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    owner = Owner()
    journal, recovered = open_journal(tmp_path, min_dead_bytes=0)
    assert recovered == Recovered()
    put(journal, small_history(owner))
    for _ in range(5):
        put(journal, owner.make_session() + owner.close("never") * 500)
        rebuild(journal, owner)
        fill_up(journal._segment.fd)
        put(journal, owner.make_session())
        rebuild(journal, owner)
    journal.compact_some(owner.live)
    journal.close()
    assert set(os.listdir("/proc/self/fd")) == before
