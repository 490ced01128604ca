"""Runs the cases, every one in forks of one process that has imported everything.

    python -m tests.bench.instructions.worker --children FILE --repeats 3 --parallel 2 [CASE...]

Under `callgrind --dump-before=getpgid` each fork writes one dump per `mark()`: what came before the
short count, the short count, the long count. FILE gets a line `pid case` per fork. Without valgrind
it runs the same way and marks mean nothing: a quick look whether all cases work.
"""

import argparse
import asyncio
import gc
import os
import secrets
import sys
import traceback
from typing import TextIO

from tests.bench.instructions.cases import CASES, Case

# The interpreter specialises code in the first rounds; those are not counted.
WARM_UP = 100


def _no_random_hex(nbytes: int | None = None) -> str:
    return "00" * (nbytes or 32)


def mark() -> None:
    """Calls a function of libc that nothing else calls, for callgrind to see."""
    os.getpgid(0)


async def run(case: Case) -> None:
    """The counted part. There is a running loop, and it never turns."""
    call = case.prepare()
    for _ in range(WARM_UP):
        call()
    mark()
    for _ in range(case.times):
        call()
    mark()
    for _ in range(3 * case.times):
        call()
    mark()


def fork(case: Case) -> int:
    """The child's pid; the child never returns from here."""
    pid = os.fork()
    if pid:
        return pid
    try:
        asyncio.run(run(case))
    except BaseException:  # noqa: BLE001 - a child must end here whatever happens
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # At once: what a gateway leaves behind is nobody's concern.
    os._exit(0)


def run_all(names: list[str], repeats: int, parallel: int, children: TextIO) -> list[str]:
    """Names of the cases that failed."""
    running: dict[int, str] = {}
    failed: list[str] = []

    def reap() -> None:
        pid, status = os.wait()
        name = running.pop(pid)
        if status:
            failed.append(name)

    for name in [name for name in names for _ in range(repeats)]:
        if len(running) == parallel:
            reap()
        pid = fork(CASES[name])
        running[pid] = name
        children.write(f"{pid} {name}\n")
    while running:
        reap()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--children", default=os.devnull)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    # Ids with random epochs would collide in dicts differently from run to run.
    secrets.token_hex = _no_random_hex
    # The collector's passes depend on what was allocated before; what it costs is not counted.
    gc.collect()
    gc.freeze()
    gc.disable()
    # Line by line: a fork must not inherit what is not written yet.
    with open(arguments.children, "w", buffering=1) as children:
        mark()  # the imports' counts go into a dump of this process, not of every fork
        names = arguments.cases or list(CASES)
        failed = run_all(names, arguments.repeats, arguments.parallel, children)
    if failed:
        sys.stderr.write(f"failed: {', '.join(sorted(set(failed)))}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
