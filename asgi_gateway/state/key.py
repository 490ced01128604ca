"""The key that the MACs of request ids are made with: created once, then read."""

import contextlib
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Final

from asgi_gateway.state import KeyExposed, StateUnusable
from asgi_gateway.state.directory import sync_directory

FILE_NAME: Final = "key"
_KEY_BYTES: Final = 32
_KEY: Final = re.compile(rf"[0-9a-f]{{{2 * _KEY_BYTES}}}\n?")


def load_key(directory: Path) -> str:
    """The key of this state directory as 64 hexadecimal digits, created at the first call.

    Raises:
        KeyExposed: the file's mode lets its group or others in.
        StateUnusable: it cannot be read or created, or does not hold a key.
    """
    path = directory / FILE_NAME
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read(path)
        _create(path)
        return _read(path)
    except OSError as fault:
        raise StateUnusable(f"{path} cannot be used: {fault.strerror or fault}") from fault


def _create(path: Path) -> None:
    """Write a key under another name first: a crash or a second process never sees half a one."""
    # Created with O_EXCL and mode 0600, whatever the umask.
    fd, draft = tempfile.mkstemp(prefix=".key-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_hex(_KEY_BYTES).encode() + b"\n")
            file.flush()
            # Once in a directory's life, and off every path: a key lost in a power cut would turn
            # all ids given out before it into unknown ones, and 404 ends the caller's run.
            os.fsync(file.fileno())
        # Like O_EXCL: the first one wins and is what both read.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        sync_directory(path.parent)
    finally:
        os.unlink(draft)  # noqa: PTH108


def _read(path: Path) -> str:
    # O_NOFOLLOW, O_NONBLOCK: what lies here may be anybody's link or pipe.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise StateUnusable(f"{path} is not a regular file")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise KeyExposed(
                f"{path} has mode {mode:04o}, so others may have read the key of the request ids:"
                " delete it (samples in flight are then lost), or chmod it to 0600 if nobody did"
            )
        text = file.read(4 * _KEY_BYTES).decode("ascii", "replace")
    if not _KEY.fullmatch(text):
        raise StateUnusable(
            f"{path} does not hold {2 * _KEY_BYTES} hexadecimal digits: restore it, or delete it"
            " (samples in flight are then lost)"
        )
    return text.strip()
