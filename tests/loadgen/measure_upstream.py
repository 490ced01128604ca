"""CPU the stand-in needs per answer: `python -m tests.loadgen.measure_upstream`.

Not a test: no threshold would hold on every machine. `loadgen upstream --ceiling` with a count of
connections and a delay to choose. Linux only, for /proc.
"""

from __future__ import annotations

import argparse

import uvloop

from loadgen.ceiling import HEAD, SIZES, line, measure, started
from loadgen.settings import Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    settings = Settings(port=0, delay_s=arguments.delay_s)
    with started(settings) as (pid, port):
        print(HEAD)
        for size in SIZES:
            found = uvloop.run(
                measure(
                    pid,
                    "127.0.0.1",
                    port,
                    size,
                    connections=arguments.connections,
                    seconds=arguments.seconds,
                )
            )
            print(line(found), flush=True)


if __name__ == "__main__":
    main()
