"""`python -m tests.faults`: every row of the fault table, one after the other.

Exit status 1 where a row fails.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from tests.faults.found import SMALL, Found, Row, Size, Told, full, table
from tests.faults.machine import INSIDE, ports_inside
from tests.faults.table import ROWS

ROW_WITHIN_S: Final = 300.0


async def told_of(row: Row, size: Size) -> Told:
    """Run one row; what goes wrong in it is a failed row, not the end of the run."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(ROW_WITHIN_S):
            found = await row.run(size)
    except (AssertionError, OSError, EOFError, TimeoutError, LookupError, ValueError) as error:
        found = Found(problems=[f"{type(error).__name__}: {str(error)[:2000]}"])
    problems = found.all_problems()
    return Told(
        name=row.name,
        fault=row.fault,
        bar=row.bar,
        found=found,
        seconds=round(time.monotonic() - began, 1),
        ok=not problems,
        problems=problems,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="repeatable")
    parser.add_argument("--list", action="store_true", help="names, faults and bars")
    parser.add_argument("--small", action="store_true", help="as the test suite runs them")
    parser.add_argument(
        "--sockets", type=int, default=1000, metavar="N", help="of slow clients (default: 1000)"
    )
    parser.add_argument("--inside", choices=(INSIDE,), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    arguments = parser.parse_args()
    if arguments.list:
        for row in ROWS:
            print(f"{row.name}: {row.fault}; {row.bar}")
        return 0
    size = SMALL if arguments.small else full(arguments.sockets)
    if arguments.inside:  # a row that runs a part of itself in a network of its own
        print(msgspec.json.encode(asyncio.run(ports_inside(size))).decode())
        return 0
    told = []
    for row in ROWS:
        if arguments.only and row.name not in arguments.only:
            continue
        try:
            one = asyncio.run(told_of(row, size))
        except KeyboardInterrupt:
            print("interrupted; the rows so far:", file=sys.stderr)
            break
        state = "ok" if one.ok else f"FAILED: {'; '.join(one.problems)[:300]}"
        print(f"{row.name}: {state} ({one.seconds:g} s)", file=sys.stderr, flush=True)
        told.append(one)
    print("\n".join(table(told)))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1))
    return 0 if told and all(one.ok for one in told) else 1


if __name__ == "__main__":
    sys.exit(main())
