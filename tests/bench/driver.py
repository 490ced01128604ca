"""A process with one closed loop in it.

    python -m tests.bench.driver SPEC

SPEC is a `Spec` as JSON. Commands come on stdin, one a line, each answered by one JSON line on
stdout. `open` has all connections stand; `run N S` does N units, or those that it gets to start in
S seconds; `park` holds a poll for each sample that a `held` loop had accepted. The process ends
when its stdin does. Nothing but `run` is meant to be measured.
"""

import asyncio
import gc
import resource
import sys
import time
from typing import Final, Literal

import msgspec
import uvloop

from tests.bench.link import Fixed, FixedLoop, Loop
from tests.bench.loops import BatchedLoop, HeldLoop, SampleLoop

# As the servers beside it: collecting with the interpreter's own would be most of the time.
GC_THRESHOLDS: Final = (10_000, 20, 100)


class Spec(msgspec.Struct, kw_only=True):
    """in_flight: connections; under batched polls, samples. requests: those of a `fixed` loop,
    each with the size of its answer. sessions: sampling sessions, of the others."""

    kind: Literal["fixed", "sample", "batched", "held"]
    port: int
    in_flight: int
    requests: list[tuple[bytes, int | None]] = []
    sessions: list[str] = []
    tokens: int = 16


class Done(msgspec.Struct, kw_only=True):
    """One command: how long it took, on the clock and on this process's core; or what broke it.

    count: units that were done. resubmitted: samples that went in again after a 410, since the
    process began.
    """

    seconds: float = 0.0
    cpu_s: float = 0.0
    count: int = 0
    resubmitted: int = 0
    fault: str | None = None


def loop_of(spec: Spec) -> Loop:
    match spec.kind:
        case "fixed":
            requests = [Fixed(*request) for request in spec.requests]
            return FixedLoop(spec.port, spec.in_flight, requests)
        case "sample":
            return SampleLoop(spec.port, spec.in_flight, spec.sessions, spec.tokens)
        case "batched":
            return BatchedLoop(spec.port, spec.in_flight, spec.sessions, spec.tokens)
        case "held":
            return HeldLoop(spec.port, spec.in_flight, spec.sessions, spec.tokens)


async def perform(loop: Loop, command: str) -> Done:
    name, *arguments = command.split()
    count = 0
    began, cpu_s = time.monotonic(), time.process_time()
    try:
        if name == "run":
            count = await loop.run(int(arguments[0]), float(arguments[1]))
        elif name == "park" and isinstance(loop, HeldLoop):
            await loop.park()
        else:
            await loop.open()
    except (OSError, RuntimeError) as error:
        return Done(fault=str(error) or repr(error))
    return Done(
        seconds=time.monotonic() - began,
        cpu_s=time.process_time() - cpu_s,
        count=count,
        resubmitted=loop.resubmitted,
    )


async def main(spec: Spec) -> None:
    reader = asyncio.StreamReader()
    running = asyncio.get_running_loop()
    await running.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    loop = loop_of(spec)
    gc.collect()
    gc.freeze()
    while line := await reader.readline():
        done = await perform(loop, line.decode().strip())
        sys.stdout.write(msgspec.json.encode(done).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.set_threshold(*GC_THRESHOLDS)
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Spec)))
