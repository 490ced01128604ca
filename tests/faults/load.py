"""A load of loadgen's client against a gateway, and one sample by hand."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from loadgen.results import Result, decode
from tests.support.processes import Process
from tests.support.wire import Remote

WITHIN_S: Final = 90.0
LOOK_S: Final = 0.02


class Load:
    """A running client. Its own verdict does not count: a busy machine makes runs invalid."""

    def __init__(self, process: Process, file: Path) -> None:
        self.process = process
        self._file = file

    async def result(self, within_s: float = WITHIN_S + 60) -> Result:
        """Once every sample has its outcome, or the time of the plan is up."""
        status = await asyncio.to_thread(self.process.wait, within_s)
        if status not in (0, 1, 3):
            raise AssertionError(self.process.story())
        return decode(self._file.read_bytes())


@contextlib.asynccontextmanager
async def load(url: str, stand_in: str, samples: int, *flags: str) -> AsyncIterator[Load]:
    """`loadgen run`, a closed loop unless the flags say otherwise. stand_in: whose record it reads;
    of several the faults of the others are for the caller to ask."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        file = Path(folder, "result.json")
        command = [sys.executable, "-m", "loadgen", "run", "--url", url, "--stand-in", stand_in]
        if "--scenario" not in flags:
            command += ["--scenario", "burst", "--no-barrier"]
        command += ["--quiet", "--no-preflight"]
        command += ["-n", str(samples), "--within-s", str(WITHIN_S), "--json", str(file), *flags]
        process = Process(command)
        try:
            yield Load(process, file)
        finally:
            await asyncio.to_thread(process.close)


async def loaded(url: str, stand_in: str, samples: int, *flags: str) -> Result:
    """A whole load."""
    async with load(url, stand_in, samples, *flags) as running:
        return await running.result()


def rate(per_s: float) -> tuple[str, ...]:
    """An open loop."""
    return ("--arrivals", "constant", "--rate", str(per_s))


async def until(found: Callable[[], bool], what: str, within_s: float = 30.0) -> float:
    """Seconds that it took; fails after `within_s`. `found` may block for a moment."""
    began = time.monotonic()
    while not await asyncio.to_thread(found):
        if time.monotonic() - began > within_s:
            raise AssertionError(f"no {what} within {within_s:g} s")
        await asyncio.sleep(LOOK_S)
    return time.monotonic() - began


async def passes(remote: Remote, within_s: float = 60.0) -> float:
    """Seconds until one sample went through, repeated as the SDK would; fails after `within_s`."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        with contextlib.suppress(OSError, EOFError, TimeoutError, AssertionError):
            request_id = await remote.submit()
            while (answer := await remote.poll(request_id)).status == 408:
                pass
            if answer.status == 200 and b"error" not in answer.body[:20]:
                return round(time.monotonic() - began, 3)
        await asyncio.sleep(0.05)
    raise AssertionError(f"no sample went through within {within_s:g} s")
