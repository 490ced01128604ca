"""`asgi-gateway` that tells, at SIGUSR1, what is left once its garbage is gone.

Run as `python -m tests.soak.watched`; AT_REST names the file to write. What the interpreter holds
is counted in blocks, exactly; what lies outside of it shows in the resident memory alone, which
says little before the C library has given back what is free.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from asgi_gateway.__main__ import main
from asgi_gateway.allocator import malloc_trim
from loadgen.procfs import usage

AT_REST: Final = "SOAK_AT_REST"
WITHIN_S: Final = 30.0


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """blocks: `sys.getallocatedblocks()`; rss_mb: of a million bytes each."""

    blocks: int
    rss_mb: float


def tell(*_: Any) -> None:
    """Write a Rest of this process."""
    gc.collect()
    trim = malloc_trim()
    if trim is not None:
        trim(0)
    seen = usage(os.getpid())
    rest = Rest(blocks=sys.getallocatedblocks(), rss_mb=(seen.rss_bytes if seen else 0) / 1e6)
    path = Path(os.environ[AT_REST])
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(rest))
    new.replace(path)


def asked(pid: int, path: Path) -> Rest:
    """What the process `pid` tells; raises AssertionError where it tells nothing."""
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + WITHIN_S
    while not path.exists():
        assert time.monotonic() < deadline, "the gateway does not tell what it holds"
        time.sleep(0.02)
    return msgspec.json.decode(path.read_bytes(), type=Rest)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    sys.exit(main())
