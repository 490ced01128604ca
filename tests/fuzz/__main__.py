"""`python -m tests.fuzz --cases N`: all targets, a table of target, cases and findings.

Exit status 1 where anything was found.
"""

import argparse
import multiprocessing
import sys
from pathlib import Path

import msgspec

from tests.fuzz.run import TARGETS, Row, run

# So many cases are one piece of work; a process takes the next when it is done.
PIECE = 10_000


def main() -> int:
    arguments = _arguments()
    names = arguments.target or list(TARGETS)
    if arguments.only is not None:
        rows = [
            run(name, arguments.seed, range(arguments.only, arguments.only + 1)) for name in names
        ]
    else:
        rows = _all(names, arguments.cases, arguments.seed, arguments.processes)
    _print(rows)
    if arguments.json:
        Path(arguments.json).write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    return 1 if any(row.found for row in rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="of all targets together")
    parser.add_argument("--target", action="append", choices=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the case of this number alone")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", help="write the rows to this file")
    return parser.parse_args()


def _all(names: list[str], cases: int, seed: int, processes: int) -> list[Row]:
    whole = sum(TARGETS[name].share for name in names)
    pieces = []
    for name in names:
        count = max(1, round(cases * TARGETS[name].share / whole))
        pieces += [(name, seed, range(at, min(at + PIECE, count))) for at in range(0, count, PIECE)]
    rows = {name: Row(name, seed) for name in names}
    if processes == 1:
        done = [run(*piece) for piece in pieces]
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            done = pool.starmap(run, pieces, chunksize=1)
    for row in done:
        rows[row.target].add(row)
    return list(rows.values())


def _print(rows: list[Row]) -> None:
    print(
        f"| {'target':9} | {'cases':>9} | {'cases/s':>8} | {'findings':>8} | what became of them |"
    )
    print("|---|---|---|---|---|")
    for row in rows:
        kinds = sorted(row.kinds.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {count:,}" for name, count in kinds)
        rate = row.cases / row.seconds if row.seconds else 0
        print(f"| {row.target:9} | {row.cases:9,} | {rate:8,.0f} | {row.found:8} | {shown} |")
    seconds = sum(row.seconds for row in rows)
    slowest = max(row.slowest_s for row in rows)
    print(f"\n{sum(row.cases for row in rows):,} cases, {seconds:.0f} s of work,", end=" ")
    print(f"{sum(row.found for row in rows)} findings, the slowest case {slowest:.2f} s")
    for row in rows:
        for finding in row.findings:
            print(
                f"\n{row.target} --seed {row.seed} --only {finding.number}: {finding.case[:2000]}"
            )
            print(finding.error)


if __name__ == "__main__":
    sys.exit(main())
