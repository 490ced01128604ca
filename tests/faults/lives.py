"""What is done to the gateway's own process: stopped, killed, held up, told to read again."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.faults.found import Found, Size
from tests.faults.judge import NOTHING, Record, asked, counts, judged
from tests.faults.load import load, passes, rate, until
from tests.faults.several import status
from tests.support.processes import serve, stand_in
from tests.support.supervised import Supervised, supervised
from tests.support.wire import Remote

DELAY_S: Final = 0.4
GRACE_S: Final = 20.0
STALL_S: Final = 1.3


@contextlib.contextmanager
def journaled(vllm: str, **settings: object) -> Iterator[Supervised]:
    """A gateway with a journal, on one port for all its lives."""
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        supervised(vllm, Path(folder), **settings) as running,
    ):
        yield running


async def life(vllm: str, before: Record) -> Record:
    """What was asked since `before`, once all of it has arrived."""
    await until(lambda: counts(vllm)["running"] == 0, "end of what was sent upstream")
    return asked([vllm]).since(before)


async def terminated(size: Size) -> Found:
    """SIGTERM under load, then the next life."""
    drain = dict[str, object](drain__predrain_s=0.5, drain__grace_s=GRACE_S)
    with stand_in("--delay-s", str(DELAY_S)) as vllm, journaled(vllm, **drain) as gateway:
        remote = Remote(gateway.port)
        await remote.handshake()
        async with load(gateway.url, vllm, size.samples * 2, "--concurrency", "30") as running:
            await until(lambda: counts(vllm)["running"] > 10, "load")
            began = time.monotonic()
            gateway.process.terminate()
            problems = []
            try:
                await until(
                    lambda: status(gateway.port, "/readyz") == 503, "503 of /readyz", GRACE_S
                )
            except AssertionError as error:
                problems.append(str(error))
            ended = await asyncio.to_thread(gateway.process.wait, GRACE_S + 10)
            drained_s = time.monotonic() - began
            first = await life(vllm, NOTHING)
            aborted = counts(vllm)["aborted"]
            gateway.start()
            recovery_s = await passes(remote)
            result = await running.result()
            second = asked([vllm]).since(first)
        found = judged(result, first, second)
        found.injected, found.recovery_s = 1, recovery_s
        found.problems += problems
        found.figures["drained in s"] = round(drained_s, 2)
        found.needs(ended == 0, f"exit status {ended}")
        found.needs(drained_s < GRACE_S, f"the drain took {drained_s:.1f} s of {GRACE_S:g}")
        found.needs(
            not aborted, f"{aborted} samples that had {DELAY_S:g} s to run were cut off upstream"
        )
        return found


async def killed(size: Size) -> Found:
    """SIGKILL under load and a restart on the same journal, once or several times."""
    kills = 1 if size.small else 4
    with stand_in("--delay-s", str(DELAY_S)) as vllm, journaled(vllm) as gateway:
        remote = Remote(gateway.port)
        await remote.handshake()
        records, recoveries = [], []
        seen = NOTHING
        samples = size.samples if size.small else 2 * size.samples
        async with load(gateway.url, vllm, samples, "--concurrency", "30") as running:
            for _ in range(kills):
                enough = seen.total + 20
                await until(lambda enough=enough: asked([vllm]).total > enough, "load")  # type: ignore[misc]
                gateway.kill()
                records.append(await life(vllm, seen))
                seen = asked([vllm])
                gateway.start()
                recoveries.append(await passes(remote))
            result = await running.result()
            records.append(asked([vllm]).since(seen))
        found = judged(result, *records)
        found.injected, found.recovery_s = kills, max(recoveries)
        said = gateway.warnings()
        found.needs("Traceback" not in said, f"a traceback: {said[-1500:]}")
        return found


async def stalled(size: Size) -> Found:
    """The event loop stands still for more than a second, polls being open."""
    with stand_in("--delay-s", str(STALL_S)) as vllm, serve(vllm) as gateway:
        remote = Remote(gateway.port)
        await remote.handshake()
        flags = ("--style", "future", *rate(20))
        async with load(gateway.url, vllm, 100, *flags) as running:
            await until(lambda: counts(vllm)["running"] > 10, "load")
            with gateway.process.frozen():
                await asyncio.sleep(STALL_S)  # the length of the fault
            recovery_s = await passes(remote)
            result = await running.result()
        found = judged(result, asked([vllm]))
        found.injected, found.recovery_s = 1, recovery_s
        lag_s = (await remote.metrics())["event_loop_lag_seconds_max"]
        found.figures["longest lag, s"] = round(lag_s, 2)
        found.needs(lag_s > 1.0, f"a stall of {STALL_S:g} s shows as {lag_s:.2f} s in the metrics")
        found.needs(
            result.traffic.polls_overdue == 0, f"{result.traffic.polls_overdue} polls given up"
        )
        return found
