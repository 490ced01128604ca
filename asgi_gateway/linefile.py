"""A file that whole lines are appended to; one that was moved or deleted is made anew.

Not for the event loop: a full disk, a slow mount or a pipe that nobody reads may hold a write.
"""

import os
from pathlib import Path
from typing import Final

STDOUT: Final = "-"
_STDOUT_FD: Final = 1
_NEWLINE: Final = ord("\n")
# Readable by the operator's group; ids and times are nobody else's business.
_MODE: Final = 0o640
# O_NONBLOCK means nothing to a file; a pipe without a reader fails with it and does not hold.
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC


class LineFile:
    """Standard output for "-", else a path; a relative one is as of now, for a host may move."""

    def __init__(self, target: str) -> None:
        self._path = None if target == STDOUT else Path(target).absolute()
        self._fd = _STDOUT_FD if self._path is None else -1
        self._identity = (0, 0)
        # The last write ended in the middle of a line.
        self._torn = False

    def __repr__(self) -> str:
        return f"<LineFile {self._path or 'standard output'}>"

    def check(self) -> None:
        """Make the file where there is none.

        Raises:
            OSError: it cannot be appended to.
        """
        if self._path is None:
            os.fstat(self._fd)
        else:
            os.close(os.open(self._path, _FLAGS, _MODE))

    def append(self, lines: bytes) -> tuple[int, OSError | None]:
        """Write lines; returns how many of them are there whole, and why not all are."""
        try:
            self._follow()
        except OSError as error:
            return 0, error
        # What was torn is ended first, so that it spoils no other line.
        first = 1 if self._torn else 0
        data = b"\n" + lines if self._torn else lines
        done, failure = 0, None
        try:
            while done < len(data):
                done += os.write(self._fd, memoryview(data)[done:])
        except OSError as error:
            failure = error
        if done:
            self._torn = data[done - 1] != _NEWLINE
        return data.count(b"\n", first, max(done, first)), failure

    def close(self) -> None:
        if self._path is not None and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _follow(self) -> None:
        """Have the file of this name open: a rotation takes the old one away."""
        if self._path is None:
            return
        if self._fd >= 0:
            try:
                named = self._path.stat()
            except FileNotFoundError:
                self.close()
            else:
                if (named.st_dev, named.st_ino) != self._identity:
                    self.close()
        if self._fd < 0:
            self._fd = os.open(self._path, _FLAGS, _MODE)
            opened = os.fstat(self._fd)
            self._identity = (opened.st_dev, opened.st_ino)
            self._torn = False
