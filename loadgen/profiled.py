"""Runs a Python program under cProfile: `python -m loadgen.profiled FILE [-m MODULE | FILE] ...`.

Times are CPU times of the thread, so that waiting in the event loop does not drown the rest. The
profile is written however the program ends, SIGKILL excepted: servers like to end by raising the
signal again that asked them to.
"""

from __future__ import annotations

import cProfile
import runpy
import signal
import sys
import time
from types import FrameType


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    file, *rest = sys.argv[1:]
    signal.signal(signal.SIGTERM, _leave)
    profile = cProfile.Profile(time.thread_time)
    try:
        if rest[0] == "-m":
            sys.argv = rest[1:]
            profile.runcall(runpy.run_module, rest[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = rest
            profile.runcall(runpy.run_path, rest[0], run_name="__main__")
    finally:
        profile.dump_stats(file)


if __name__ == "__main__":
    main()
