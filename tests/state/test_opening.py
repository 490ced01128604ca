"""Opening what is there: empty, whole, torn, damaged, of another version, owned by another."""

import logging
import os
import stat
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from asgi_gateway.state import StateError, StateLocked, StateUnusable, StateVersion
from asgi_gateway.state.events import (
    FRAME,
    HEADER_BYTES,
    Booted,
    Event,
    SessionMade,
    frame_into,
    header,
)
from asgi_gateway.state.opening import open_journal
from asgi_gateway.state.recovery import Recovered, replay
from tests.state.owner import (
    Owner,
    names,
    recover,
    same,
    segment_bytes,
    small_history,
    write_segment,
)


def raw_frame(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def prefixes(events: list[Event]) -> Iterator[tuple[int, list[Event]]]:
    """Length of the file that ends after each event, and the events in it."""
    for count in range(len(events) + 1):
        yield len(segment_bytes(events[:count])), events[:count]


def test_a_new_directory(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there"
    journal, recovered = open_journal(directory)
    with closing(journal):
        assert recovered == Recovered()
        assert journal.healthy
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert {path.name for path in directory.iterdir()} == {"lock", "journal-000001.log"}
        for path in directory.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_flushed_is_there_again(tmp_path: Path) -> None:
    owner = Owner()
    for boot in range(3):
        journal, recovered = open_journal(tmp_path)
        assert same(recovered, owner.recovered())
        for event in owner.boot(boot) + owner.make_session():
            journal.append(event)
        journal.close()
    assert names(tmp_path) == ["journal-000001.log"]


@pytest.mark.parametrize("more", [b"", raw_frame(b"\x92" + bytes(200))[:-1], bytes(4096)])
def test_torn_at_every_byte(tmp_path: Path, more: bytes) -> None:
    """Also with part of a record, or blocks of zeros, where the rest should be."""
    events = small_history()
    whole = segment_bytes(events)
    ends = list(prefixes(events))
    last = SessionMade("after", "alice")
    path = tmp_path / "journal-000001.log"
    for cut in range(len(whole) + 1):
        data = whole[:cut] + more
        # Without this, each of hundreds of truncations makes the file system write to disk.
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        # By its bytes, not by where it was cut: what follows may happen to be the missing end.
        kept = max((e for end, e in ends if data[:end] == whole[:end]), key=len, default=[])
        journal, recovered = open_journal(tmp_path)
        assert recovered == replay(kept)
        journal.append(last)
        journal.close()
        assert path.read_bytes() == segment_bytes([*kept, last])


def test_a_flipped_byte_anywhere(tmp_path: Path) -> None:
    events = small_history()
    whole = segment_bytes(events)
    ends = list(prefixes(events))
    last = SessionMade("after", "alice")
    path = tmp_path / "journal-000001.log"
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path.unlink(missing_ok=True)
        path.write_bytes(damaged)
        # In the header it costs nothing: the records vouch for themselves.
        kept = events if at < HEADER_BYTES else max((e for end, e in ends if end <= at), key=len)
        journal, recovered = open_journal(tmp_path)
        assert recovered == replay(kept)
        journal.append(last)
        journal.close()
        assert path.read_bytes() == segment_bytes([*kept, last])


def test_a_torn_tail_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_segment(tmp_path, 1, small_history())
    path.write_bytes(path.read_bytes()[:-3])
    journal, _ = open_journal(tmp_path)
    journal.close()
    assert journal.found.bad_bytes > 0
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{path}: cutting off a torn tail of" in record.getMessage()


def test_damage_in_an_older_segment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    events = small_history(owner)
    older = write_segment(tmp_path, 2, events)
    newer = [*owner.make_session(), *owner.accept(next(iter(owner.sampling)))]
    write_segment(tmp_path, 7, newer)
    ends = list(prefixes(events))
    whole = older.read_bytes()
    for at in range(HEADER_BYTES, len(whole), 5):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        older.write_bytes(damaged)
        caplog.clear()
        kept = max((e for end, e in ends if end <= at), key=len)
        assert recover(tmp_path) == replay([*kept, *newer])
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert f"{older}: damaged; its last" in record.getMessage()
        # Evidence: only a file that is appended to has to be repaired.
        assert older.read_bytes() == bytes(damaged)
    for cut in (0, 3, HEADER_BYTES - 1):
        older.write_bytes(whole[:cut])
        assert recover(tmp_path) == replay(newer)
    assert names(tmp_path) == ["journal-000002.log", "journal-000007.log"]


def test_segments_are_read_in_numeric_order_beyond_six_digits(tmp_path: Path) -> None:
    write_segment(tmp_path, 1_000_000, [Booted("b", 2)])
    write_segment(tmp_path, 999_999, [Booted("a", 1)])
    assert recover(tmp_path).epochs == ["a", "b"]


def test_an_incomplete_copy_is_ignored_and_deleted(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, [Booted("a", 1)])
    (tmp_path / "journal-000002.part").write_bytes(segment_bytes([Booted("b", 2)]))
    (tmp_path / "journal-000003.log.backup").write_text("whatever")
    assert recover(tmp_path).epochs == ["a"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "lock",
        "journal-000001.log",
        "journal-000003.log.backup",
    }


def test_unknown_and_unreadable_records_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = [
        raw_frame(msgspec.msgpack.encode([77, "newer"])),
        raw_frame(msgspec.msgpack.encode([1, "epoch", "not a number"])),
    ]
    buffer = bytearray(header() + b"".join(frames))
    frame_into(buffer, Booted("a", 1))
    (tmp_path / "journal-000001.log").write_bytes(buffer)
    journal, recovered = open_journal(tmp_path)
    journal.close()
    assert recovered.epochs == ["a"]
    assert (journal.found.unknown_events, journal.found.unreadable_events) == (1, 1)
    assert journal.found.bad_bytes == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]
    assert (tmp_path / "journal-000001.log").read_bytes() == bytes(buffer)


def test_a_whole_copy_replaces_what_is_before_it(tmp_path: Path) -> None:
    """Killed between the renaming and the deletions."""
    for number in (1, 2, 5):
        write_segment(tmp_path, number, [Booted(f"old {number}", number)])
    (tmp_path / "journal-000003.base").write_bytes(segment_bytes([Booted("copied", 3)]))
    assert recover(tmp_path).epochs == ["copied", "old 5"]
    assert names(tmp_path) == ["journal-000003.base", "journal-000005.log"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_another_version_is_refused_and_nothing_changed(tmp_path: Path, number: int) -> None:
    for n in (1, 2, 3):
        write_segment(tmp_path, n, [Booted("a", 1)])
    (tmp_path / "journal-000003.log").write_bytes(segment_bytes([Booted("a", 1)])[:-1])
    (tmp_path / "journal-000004.part").write_bytes(b"")
    stem = header()[:8] + (9).to_bytes(4, "little")
    newer = stem + zlib.crc32(stem).to_bytes(4, "little") + b"something else"
    (tmp_path / f"journal-{number:06}.log").write_bytes(newer)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(StateVersion, match=rf"journal-{number:06}\.log .*version 9.*state\.dir"):
        open_journal(tmp_path)
    after = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name != "lock"}
    assert after == before
    # Nor is the directory left locked.
    (tmp_path / f"journal-{number:06}.log").unlink()
    recover(tmp_path)


# --- one owner -----------------------------------------------------------------------------------


def test_a_second_owner_in_this_process(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    with pytest.raises(StateLocked, match=rf"{tmp_path} is in use .*process {os.getpid()}\)"):
        open_journal(tmp_path)
    journal.append(Booted("a", 1))
    journal.close()
    assert recover(tmp_path).epochs == ["a"]


def test_a_second_owner_in_another_process(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from asgi_gateway.state import StateLocked\n"
        "from asgi_gateway.state.opening import open_journal\n"
        "try: open_journal(Path(sys.argv[1]))\n"
        "except StateLocked as fault: sys.exit(str(fault))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    journal, _ = open_journal(tmp_path)
    with closing(journal):
        second = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert second.returncode == 1
        assert f"{tmp_path} is in use by another gateway (process {os.getpid()})" in second.stderr
        # What the loser did has not let go of anything.
        with pytest.raises(StateLocked):
            open_journal(tmp_path)
    assert subprocess.run(command, capture_output=True, timeout=30).returncode == 0


def test_a_child_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        journal.close()
        assert recover(tmp_path) == Recovered()
        child.communicate(b"\n")


# --- no use --------------------------------------------------------------------------------------


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StateUnusable, match=f"state.dir {directory} cannot be used"):
            open_journal(directory)


def test_a_segment_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "journal-000001.log").mkdir()
    with pytest.raises(StateUnusable, match=r"journal-000001\.log: Is a directory"):
        open_journal(tmp_path)
    (tmp_path / "journal-000001.log").rmdir()
    recover(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StateUnusable, match="Permission denied"):
            open_journal(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_all_are_state_errors() -> None:
    assert all(issubclass(e, StateError) for e in (StateLocked, StateVersion, StateUnusable))
