"""One file of the journal, open for appending whole records."""

import os
from pathlib import Path

from asgi_gateway.state.events import HEADER_BYTES, header


class Segment:
    """A file open for appending.

    nbytes: its length up to the last whole record. torn: there may be a broken one behind that.
    """

    def __init__(self, path: Path, fd: int, nbytes: int) -> None:
        self.path = path
        self.fd = fd
        self.nbytes = nbytes
        self.torn = False

    def __repr__(self) -> str:
        return f"<Segment {self.path.name}, {self.nbytes} bytes>"

    @classmethod
    def create(cls, path: Path) -> "Segment":
        """A new file (mode 0600) with its header. Raises OSError and then leaves no file."""
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        segment = cls(path, fd, 0)
        try:
            segment.write(header())
        except OSError:
            segment.close()
            path.unlink(missing_ok=True)
            raise
        return segment

    @classmethod
    def repair(cls, path: Path, nbytes: int) -> "Segment":
        """Go on after the first `nbytes` of a file, with a header in any case. Raises OSError."""
        nbytes = max(nbytes, HEADER_BYTES)
        # Not the descriptor to append with: where O_APPEND is set, Linux appends in pwrite too.
        fd = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(fd, header(), 0)
            os.ftruncate(fd, nbytes)
        finally:
            os.close(fd)
        return cls(path, os.open(path, os.O_WRONLY | os.O_APPEND), nbytes)

    def write(self, data: bytes | bytearray) -> None:
        """Append all of `data`, or nothing of it as far as the disk lets us take it back.

        Raises:
            OSError: it was not written. Where `torn` is set, nothing may be written any more: a
                reader stops there.
        """
        nbytes = len(data)
        try:
            done = os.write(self.fd, data)
            if done != nbytes:
                # A signal or the last free block: the next call says which.
                with memoryview(data) as view:
                    while done < nbytes:
                        done += os.write(self.fd, view[done:])
        except OSError:
            self._take_back()
            raise
        self.nbytes += nbytes

    def _take_back(self) -> None:
        try:
            os.ftruncate(self.fd, self.nbytes)
        except OSError:
            self.torn = True

    def close(self) -> None:
        os.close(self.fd)
