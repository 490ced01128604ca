"""A file of lines under rotation, a full disk and a pipe: every line that counts is there whole."""

import errno
import os
from pathlib import Path

import pytest

from asgi_gateway.linefile import LineFile


def test_lines_join_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"old\n")
    lines = LineFile(str(path))
    lines.check()
    assert lines.append(b"a\nb\n") == (2, None)
    assert lines.append(b"c\n") == (1, None)
    lines.close()
    assert path.read_bytes() == b"old\na\nb\nc\n"


def test_a_new_file_is_not_for_everybody(tmp_path: Path) -> None:
    LineFile(str(tmp_path / "lines")).check()
    assert (tmp_path / "lines").stat().st_mode & 0o007 == 0


@pytest.mark.parametrize("take_away", [lambda p: p.rename(f"{p}.1"), Path.unlink])
def test_a_file_that_was_taken_away_is_made_anew(tmp_path: Path, take_away: object) -> None:
    path = tmp_path / "lines"
    lines = LineFile(str(path))
    lines.append(b"a\n")
    assert callable(take_away)
    take_away(path)
    assert lines.append(b"b\n") == (1, None)
    assert path.read_bytes() == b"b\n"
    lines.close()


def test_a_rotation_that_makes_the_new_file_itself(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = LineFile(str(path))
    lines.append(b"a\n")
    path.rename(tmp_path / "lines.1")
    path.touch()
    lines.append(b"b\n")
    assert (tmp_path / "lines.1").read_bytes() == b"a\n"
    assert path.read_bytes() == b"b\n"
    lines.close()


def test_a_relative_path_does_not_follow_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = LineFile("lines")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    lines.append(b"a\n")
    lines.close()
    assert (tmp_path / "lines").read_bytes() == b"a\n"


def test_a_full_disk() -> None:
    lines = LineFile("/dev/full")
    written, error = lines.append(b"a\nb\n")
    assert written == 0
    assert error is not None
    assert error.errno == errno.ENOSPC
    lines.close()


def test_a_folder_that_goes_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    lines = LineFile(str(folder / "lines"))
    lines.append(b"a\n")
    (folder / "lines").unlink()
    folder.rmdir()
    written, error = lines.append(b"b\n")
    assert (written, type(error)) == (0, FileNotFoundError)
    folder.mkdir()
    assert lines.append(b"c\n") == (1, None)
    assert (folder / "lines").read_bytes() == b"c\n"
    lines.close()


def test_a_torn_line_spoils_no_other(tmp_path: Path) -> None:
    """A pipe takes a part of what does not fit, as a disk does that becomes full."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        lines = LineFile(str(path))
        data = b"".join(b"%06d-%s\n" % (i, b"x" * 90) for i in range(2000))
        written, error = lines.append(data)
        assert isinstance(error, BlockingIOError)
        assert 0 < written < 2000
        assert lines.append(b"lost\n")[0] == 0
        got = os.read(reader, 1 << 20)
        assert not got.endswith(b"\n"), "nothing was torn"
        assert lines.append(b"after\n") == (1, None)
        got += os.read(reader, 1 << 20)
        lines.close()
    finally:
        os.close(reader)
    whole = got.split(b"\n")
    assert whole[:written] == data.split(b"\n")[:written]
    assert whole[written + 1 :] == [b"after", b""]


def test_a_pipe_without_a_reader_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device") as refused:
        LineFile(str(tmp_path / "pipe")).check()
    assert refused.value.errno == errno.ENXIO


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        LineFile(str(tmp_path)).check()
