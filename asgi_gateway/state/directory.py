"""The state directory: made for us alone, owned by one process, and what the files in it are."""

import contextlib
import fcntl
import os
import re
from pathlib import Path
from typing import Final

from asgi_gateway.state import StateLocked, StateUnusable

_LOCK_NAME: Final = "lock"
_FILE: Final = re.compile(r"journal-([0-9]{6,})\.(log|base|part)")


class DirectoryLock:
    """Owns a directory from construction to `close`, or to the end of the process."""

    def __init__(self, directory: Path) -> None:
        """Create the directory (mode 0700) where it is missing, and take its lock.

        Raises:
            StateLocked: it has an owner.
            StateUnusable: it cannot be created or locked.
        """
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(directory / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as fault:
            raise unusable(directory, fault) from fault
        try:
            # flock and not lockf: it also keeps out a second gateway of this very process, and
            # closing some other descriptor of the file does not let go of it.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            owner = os.pread(self._fd, 20, 0).decode("ascii", "replace") or "unknown"
            self.close()
            raise StateLocked(
                f"{directory} is in use by another gateway (process {owner}):"
                " stop it, or set state.dir to another directory"
            ) from None
        except OSError as fault:
            # A full disk must not keep a gateway from starting where only the note failed.
            if not self._is_held():
                self.close()
                raise unusable(directory, fault) from fault

    def close(self) -> None:
        """Let go. The file stays: unlinking it would let two processes lock two files."""
        os.close(self._fd)

    def _is_held(self) -> bool:
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False


def unusable(directory: Path, fault: OSError) -> StateUnusable:
    """`fault` for the operator."""
    where = fault.filename or directory
    return StateUnusable(f"state.dir {directory} cannot be used: {where}: {fault.strerror}")


def segment_path(directory: Path, number: int) -> Path:
    """Where events are appended."""
    return directory / f"journal-{number:06}.log"


def base_path(directory: Path, number: int) -> Path:
    """A whole copy of what was live: nothing with a lower number counts any more."""
    return directory / f"journal-{number:06}.base"


def partial_path(directory: Path, number: int) -> Path:
    """Where such a copy is written before it is whole; never read."""
    return directory / f"journal-{number:06}.part"


def segments(directory: Path) -> tuple[list[tuple[int, Path]], list[Path]]:
    """Number and path of the files that count, and the files that do not, oldest first each.

    Raises OSError.
    """
    counting: list[tuple[int, Path]] = []
    idle: list[Path] = []
    found = ((_FILE.fullmatch(path.name), path) for path in directory.iterdir())
    for number, kind, path in sorted((int(m[1]), m[2], path) for m, path in found if m):
        if kind == "part":
            idle.append(path)
            continue
        if kind == "base":
            idle += [older for _, older in counting]
            counting.clear()
        counting.append((number, path))
    return counting, idle


def sync_directory(directory: Path) -> None:
    """Make the names in it survive a power cut. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
