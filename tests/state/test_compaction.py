"""Compaction step by step, beside a thread that syncs, and what stays on the disk."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asgi_gateway.state.events import Accepted, Booted, Closed, Event, SessionMade
from asgi_gateway.state.journal import Journal
from asgi_gateway.state.opening import open_journal
from tests.state.owner import (
    Owner,
    names,
    recover,
    recover_as_if_killed_now,
    same,
    small_history,
)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def journal(tmp_path: Path, owner: Owner) -> Iterator[Journal]:
    """With more dead than live bytes, so that the next turn starts a compaction."""
    opened, _ = open_journal(tmp_path, min_dead_bytes=1000)
    events = small_history(owner) + owner.close("never") * 200
    for event in events:
        opened.append(event)
    opened.flush()
    yield opened
    opened.close()


def test_a_compaction_from_end_to_end(journal: Journal, owner: Owner, tmp_path: Path) -> None:
    before = journal.nbytes
    journal.compact_some(owner.live)
    assert names(tmp_path) == [
        "journal-000001.log",
        "journal-000002.part",
        "journal-000003.log",
    ]
    turns = 0
    while not journal.sync_wanted:
        journal.compact_some(owner.live, budget=3)
        turns += 1
    live = len(list(owner.live()))
    assert turns == live // 3 + 1
    # Until the copy is durable, everything stays.
    for _ in range(10):
        journal.compact_some(owner.live)
    assert names(tmp_path) == ["journal-000001.log", "journal-000002.part", "journal-000003.log"]
    journal.sync()
    assert names(tmp_path) == ["journal-000002.base", "journal-000003.log"]
    journal.compact_some(owner.live)
    assert journal._compaction is None
    assert journal.nbytes < before / 2
    assert same(recover_as_if_killed_now(tmp_path), owner.recovered())


def test_nothing_is_deleted_before_the_copy_is_durable(
    journal: Journal, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even after a power cut: file, name, and only then the rest."""
    done: list[str] = []
    fsync, rename, unlink = os.fsync, Path.rename, Path.unlink

    def noting_fsync(fd: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        fsync(fd)

    def noting_rename(path: Path, target: Path) -> Path:
        done.append(f"rename {path.name} {target.name}")
        return rename(path, target)

    def noting_unlink(path: Path, missing_ok: bool = False) -> None:
        done.append(f"delete {path.name}")
        unlink(path, missing_ok)

    for _ in range(3):
        journal.compact_some(owner.live)
    assert journal.sync_wanted
    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "rename", noting_rename)
    monkeypatch.setattr(Path, "unlink", noting_unlink)
    journal.sync()
    directory = journal._directory.name
    assert done == [
        "sync journal-000003.log",
        f"sync {directory}",
        "sync journal-000002.part",
        "rename journal-000002.part journal-000002.base",
        f"sync {directory}",
        "delete journal-000001.log",
    ]


def test_what_is_dead_is_known_from_the_start(owner: Owner, tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, min_dead_bytes=1000)
    for event in small_history(owner):
        journal.append(event)
    for _ in range(100):
        for event in owner.accept(next(iter(owner.sampling))):
            journal.append(event)
    for request_id in list(owner.samples):
        for event in owner.close(request_id):
            journal.append(event)
    journal.close()
    journal, _ = open_journal(tmp_path, min_dead_bytes=1000)
    journal.compact_some(owner.live)
    assert journal._compaction is not None
    journal.close()


def test_an_ordinary_sync_in_between_ends_nothing(
    journal: Journal, owner: Owner, tmp_path: Path
) -> None:
    journal.compact_some(owner.live)
    journal.compact_some(owner.live, budget=2)
    journal.sync()
    assert names(tmp_path) == ["journal-000001.log", "journal-000002.part", "journal-000003.log"]
    assert same(recover_as_if_killed_now(tmp_path), owner.recovered())


def test_what_is_closed_after_it_was_copied_stays_closed(
    journal: Journal, owner: Owner, tmp_path: Path
) -> None:
    journal.compact_some(owner.live)
    while not journal.sync_wanted:
        journal.compact_some(owner.live, budget=1)
    for event in owner.close(next(iter(owner.samples))):
        journal.append(event)
    journal.sync()
    journal.compact_some(owner.live)
    journal.close()
    assert same(recover(tmp_path), owner.recovered())


def test_an_owner_that_hands_out_what_it_no_longer_holds(
    journal: Journal, owner: Owner, tmp_path: Path
) -> None:
    """Wasteful, and still right: its end is behind it in the tail."""
    frozen = list(owner.live())
    journal.compact_some(lambda: iter(frozen))
    for event in owner.close(next(iter(owner.samples))) + owner.forget(next(iter(owner.sessions))):
        journal.append(event)
    while not journal.sync_wanted:
        journal.compact_some(owner.live)
    journal.sync()
    journal.compact_some(owner.live)
    journal.close()
    assert same(recover(tmp_path), owner.recovered())


def test_what_live_raises_ends_the_compaction(
    journal: Journal, owner: Owner, tmp_path: Path
) -> None:
    def broken() -> Iterator[Event]:
        for number, event in enumerate(owner.live()):
            if number == 2:
                raise KeyError("a bug of the owner")
            yield event

    journal.compact_some(broken)
    with pytest.raises(KeyError):
        journal.compact_some(broken)
    assert journal.healthy
    assert not list(tmp_path.glob("*.part"))
    assert same(recover_as_if_killed_now(tmp_path), owner.recovered())
    # And the next one makes it whole.
    for _ in range(5):
        journal.compact_some(owner.live)
    journal.sync()
    journal.compact_some(owner.live)
    assert names(tmp_path) == ["journal-000002.base", "journal-000003.log"]
    assert same(recover_as_if_killed_now(tmp_path), owner.recovered())


def test_syncing_in_a_thread_of_its_own(owner: Owner, tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, min_dead_bytes=2000)
    for event in small_history(owner):
        journal.append(event)
    sampler = next(iter(owner.sampling))
    ending = threading.Event()
    rounds = turns = 0

    def keep_syncing() -> None:
        while not ending.wait(0.0002):
            journal.sync()

    with ThreadPoolExecutor(1) as pool:
        syncing = pool.submit(keep_syncing)
        while rounds < 5 and turns < 1_000_000:
            turns += 1
            for event in owner.accept(sampler):
                journal.append(event)
            if len(owner.samples) > 50:
                for event in owner.close(next(iter(owner.samples))):
                    journal.append(event)
            journal.flush()
            before = journal._compaction
            journal.compact_some(owner.live, budget=20)
            rounds += before is not None and journal._compaction is None
        ending.set()
        syncing.result()
    assert journal.healthy
    assert rounds == 5
    journal.close()
    assert same(recover(tmp_path), owner.recovered())


def test_sessions_that_come_and_go_are_compacted_too(tmp_path: Path) -> None:
    """Their records count as live until a compaction; growth alone has to start one."""
    journal, _ = open_journal(tmp_path)
    text = 1000 * "x"
    largest = 0
    for number in range(60_000):
        journal.append(SessionMade(f"session-{number}", text))
        journal.compact_some(lambda: iter([Booted("a", 1)]))
        if journal.sync_wanted:
            journal.sync()
        largest = max(largest, journal.nbytes)
    journal.close()
    assert largest < 40 * 2**20


def test_a_million_samples_stay_within_bounds(tmp_path: Path) -> None:
    """With up to 20,000 of them open."""
    journal, _ = open_journal(tmp_path)
    samples: dict[int, Accepted] = {}

    def live() -> Iterator[Event]:
        yield from list(samples.values())

    largest = compactions = 0
    name = 24 * "0"
    for number in range(1_000_000):
        sample = samples[number] = Accepted(
            f"0123456789-{number:x}-{name}", "alice", name, number, 16 * b"d"
        )
        journal.append(sample)
        if number >= 20_000:
            journal.append(Closed(samples.pop(number - 20_000).request_id))
        if number % 100 == 0:
            journal.flush()
            journal.compact_some(live)
            if journal.sync_wanted:
                on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
                largest = max(largest, on_disk)
                compactions += 1
                journal.sync()
    journal.close()
    assert largest < 64 * 2**20
    assert compactions > 10
    # Of a session that was never written down.
    assert recover(tmp_path).dropped == 20_000
