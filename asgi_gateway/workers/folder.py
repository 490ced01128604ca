"""The folder in which the workers of one supervisor meet: sockets, and what each had counted.

    7.sock     the worker with serial 7 answers the others here
    7.counts   its metrics when they were last shown to anybody, or at its end
    dead       the sum of those that are gone

So a worker that dies takes no counts with it but those that nobody saw, and no sum ever falls.
"""

import contextlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from asgi_gateway.settings import SettingsError
from asgi_gateway.workers import exposition

log = logging.getLogger(__name__)

_DEAD: Final = "dead"
# Of the dead, how many are known by name; a scrape has to tell only those of the last second.
_KNOWN: Final = 256
# sockaddr_un has 108 bytes on Linux and 104 elsewhere.
_PATH_BYTES: Final = 100


class Dead(msgspec.Struct, frozen=True):
    """serials: whose counts are in it. deaths: how many ended that nobody had told to."""

    serials: list[int] = []
    deaths: int = 0
    text: str = ""


class Folder:
    """Of a supervisor, or of one of its workers."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"<Folder {self.path}>"

    @classmethod
    def made(cls) -> "Folder":
        """A new one, for this user alone.

        Raises:
            SettingsError: there is no place for it.
        """
        try:
            path = tempfile.mkdtemp(prefix="asgi-gateway-")
        except OSError as error:
            problem = f"server.workers: no folder for temporary files: {error}; set TMPDIR"
            raise SettingsError([problem]) from error
        if len(os.fsencode(path)) > _PATH_BYTES - len("/123456789.sock"):
            shutil.rmtree(path)
            raise SettingsError([f"server.workers: the name of {path} is too long; set TMPDIR"])
        return cls(path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    # --- who is there ----------------------------------------------------------------------------

    def socket(self, serial: int) -> Path:
        return self.path / f"{serial}.sock"

    def serials(self) -> list[int]:
        """Of the workers that are there."""
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):  # noqa: PTH208 - a third of the time
                serial, _, kind = name.partition(".")
                if kind == "sock" and serial.isdecimal():
                    found.append(int(serial))
        return sorted(found)

    # --- counts ----------------------------------------------------------------------------------

    def keep(self, serial: int, text: bytes) -> None:
        """What a worker counts now."""
        self._write(f"{serial}.counts", text)

    def kept(self, serial: int) -> bytes:
        """Empty where nothing was kept, and after its death."""
        with contextlib.suppress(OSError):
            return (self.path / f"{serial}.counts").read_bytes()
        return b""

    def dead(self) -> Dead:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((self.path / _DEAD).read_bytes(), type=Dead)
        return Dead()

    def bury(self, serial: int, *, told: bool) -> None:
        """A worker is gone: its counts are among those of the dead from now on. For the supervisor.

        told: whether it was told to end. Whoever sums up reads the dead last, so that it finds
        each worker once.
        """
        before = self.dead()
        total = exposition.read(before.text.encode())
        try:
            exposition.add(total, exposition.read(self.kept(serial)), gauges=False)
        except ValueError:
            log.warning("the counts of a worker that ended cannot be read")
        self._write(
            _DEAD,
            msgspec.json.encode(
                Dead(
                    [*before.serials, serial][-_KNOWN:],
                    before.deaths + (not told),
                    exposition.write(total.values()).decode(),
                )
            ),
        )
        for name in (f"{serial}.sock", f"{serial}.counts"):
            with contextlib.suppress(OSError):
                (self.path / name).unlink()

    def _write(self, name: str, data: bytes) -> None:
        """Whole, or as it was: others read meanwhile, and may write the same."""
        draft = self.path / f"{name}.{os.getpid()}"
        try:
            draft.write_bytes(data)
            draft.rename(self.path / name)
        except OSError as error:
            log.warning("%s: %s; metrics may fall when a worker ends", self.path, error.strerror)
