"""`python -m tests.soak`: two hours, or so much of them; exit status 1 where it is not passed."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from tests.soak.run import RATE, extent, soak
from tests.soak.verdict import table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--time", type=float, default=1.0, metavar="FACTOR", help="of two hours")
    parser.add_argument("--rate", type=float, default=RATE, metavar="N", help="samples a second")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    found = asyncio.run(soak(extent(arguments.time)._replace(rate=arguments.rate)))
    print("\n".join(table(found)))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    return 1 if found.all_problems() else 0


if __name__ == "__main__":
    sys.exit(main())
