"""The command line of the flood. Exit status 1 unless everything was delivered exactly once."""

import argparse
import gc
import os
import shlex
import sys
from pathlib import Path

import msgspec
import uvloop

from loadgen.counts import REQUEST_IDS_CAP
from tests.support.flood.report import table
from tests.support.flood.run import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.flood", description=__doc__)
    add = parser.add_argument
    add("--samples", type=int, default=131_072)
    add("--sessions", type=int, default=4, help="each with one sampling session and one held poll")
    add("--cycles", type=int, default=2, help="how often, in the same gateway process")
    add("--prompt-tokens", type=int, default=64)
    add("--tokens", type=int, default=16)
    add("--submitters", type=int, default=64, help="connections that submit")
    add("--fetchers", type=int, default=64, help="connections that fetch results")
    add("--hold", choices=("barrier", "none"), help="barrier: nothing is answered until all are in")
    add("--hold-s", type=float, default=10.0, help="how long all are held in flight")
    add(
        "--delay-s", type=float, default=0.0, help="answer so long after asked; without the barrier"
    )
    add("--fault-every", type=int, default=0, metavar="N", help="interrupt each N-th sample once")
    add("--within-s", type=float, default=900.0, help="what has no outcome by then is lost")
    add("--state-dir", help="the gateway's state.dir; a fresh one unless given")
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="a gateway setting")
    add("--profile", metavar="FILE", help="run the gateway under cProfile")
    add("--json", metavar="FILE", help="write the report there too")
    add("--no-pin", action="store_true", help="gateway on core 0, all else on core 1 unless given")
    arguments = parser.parse_args()
    if not 0 < arguments.samples <= REQUEST_IDS_CAP:
        parser.error(f"argument --samples: 1 to {REQUEST_IDS_CAP}, which the stand-in remembers")
    if arguments.prompt_tokens < 3:
        parser.error("argument --prompt-tokens: at least 3")
    pinned = not arguments.no_pin and (os.cpu_count() or 1) > 1
    plan = Plan(
        samples=arguments.samples,
        sessions=arguments.sessions,
        cycles=arguments.cycles,
        prompt_tokens=arguments.prompt_tokens,
        max_tokens=arguments.tokens,
        submitters=arguments.submitters,
        fetchers=arguments.fetchers,
        barrier=(arguments.hold or ("none" if arguments.delay_s else "barrier")) == "barrier",
        hold_s=arguments.hold_s,
        delay_s=arguments.delay_s,
        within_s=arguments.within_s,
        fault_every=arguments.fault_every,
        gateway_core=0 if pinned else None,
        client_core=1 if pinned else None,
        state_dir=arguments.state_dir,
        profile=arguments.profile,
        settings=dict(pair.split("=", 1) for pair in arguments.set),
        command=shlex.join(["python", "-m", "tests.support.flood", *sys.argv[1:]]),
    )
    gc.set_threshold(50_000, 20, 100)
    report = uvloop.run(run(plan))
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
    sys.stdout.write(f"{table(report)}\n{encoded.decode()}\n")
    if arguments.json:
        Path(arguments.json).write_bytes(encoded + b"\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
