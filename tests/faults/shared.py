"""What is done to gateways that share a store, and to the store's server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from loadgen.procfs import tree
from loadgen.results import Result
from tests.faults.found import Found, Size
from tests.faults.judge import Record, asked, counts, judged
from tests.faults.load import load, passes, rate, until
from tests.support.processes import Served, serve, stand_in
from tests.support.valkey import Valkey, valkey
from tests.support.wire import Remote

DELAY_S: Final = 0.3
WORKERS: Final = 2
KILLS: Final = 10
Harm = Callable[[Valkey], None]
# Between two of them: longer than a lease, so that each death is found by the others.
KILL_EVERY_S: Final = 4.0
LEASE_S: Final = 2.0
AWAY_S: Final = 3.0


@contextlib.contextmanager
def sharing(vllm: str, *options: str, **settings: object) -> Iterator[tuple[Served, Valkey]]:
    """Workers on one port over a server of their own. options: the server's."""
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        valkey(Path(folder), *options) as server,
        serve(
            vllm,
            "--workers",
            str(WORKERS),
            store__url=server.url,
            store__lease_s=LEASE_S,
            **settings,
        ) as gateway,
    ):
        yield gateway, server


def shared_judged(result: Result, vllm: str) -> Found:
    """A sample whose client was told 410 runs again, under the same id or another; not more often
    than clients submitted any again."""
    seen = asked([vllm])
    once = Record(dict.fromkeys(seen.requests, 1), seen.faulted, seen.sessions)
    found = judged(result, once)
    again = seen.total - len(seen.requests) - result.traffic.resubmitted
    if again > 0:
        found.doubled += again
        found.problems.append(f"{again} samples ran again that no client submitted again")
    found.figures["submitted again"] = result.traffic.resubmitted
    return found


async def worker_killed(size: Size) -> Found:
    """SIGKILL of one of the workers at random, again and again under load."""
    kills = 2 if size.small else KILLS
    with stand_in("--delay-s", str(DELAY_S)) as vllm, sharing(vllm) as (gateway, _):
        samples = round(100 * KILL_EVERY_S * (kills + 1))
        async with load(gateway.url, vllm, samples, *rate(100)) as running:
            await until(lambda: counts(vllm)["running"] > 10, "load")
            for _ in range(kills):
                workers = [pid for pid in tree(gateway.process.pid) if pid != gateway.process.pid]
                os.kill(random.choice(workers), signal.SIGKILL)
                await asyncio.sleep(KILL_EVERY_S)
            recovery_s = await passes(await _remote(gateway))
            result = await running.result()
        found = shared_judged(result, vllm)
        found.injected, found.recovery_s = kills, recovery_s
        found.needs(
            "Traceback" not in gateway.process.stderr,
            f"a traceback: {gateway.process.stderr[-1500:]}",
        )
        return found


async def server_killed(size: Size) -> Found:
    """The shared store's server is killed and comes back with what it had written."""
    return await _server(size, _kill, "--appendonly", "yes", "--appendfsync", "always")


async def server_emptied(size: Size) -> Found:
    """The same, and it has lost everything."""
    return await _server(size, _kill)


async def server_hung(size: Size) -> Found:
    """It is stopped for a while (SIGSTOP)."""
    return await _server(size, _freeze)


async def server_full(size: Size) -> Found:
    """It takes no more writes for a while."""
    return await _server(size, _fill)


async def _server(size: Size, harm: Harm, *options: str) -> Found:
    with stand_in("--delay-s", str(DELAY_S)) as vllm, sharing(vllm, *options) as (gateway, server):
        async with load(gateway.url, vllm, size.samples, *rate(60)) as running:
            await until(lambda: counts(vllm)["running"] > 10, "load")
            await asyncio.to_thread(harm, server)
            recovery_s = await passes(await _remote(gateway))
            result = await running.result()
        found = shared_judged(result, vllm)
        found.injected, found.recovery_s = 1, recovery_s
        return found


def _kill(server: Valkey) -> None:
    server.kill()
    time.sleep(AWAY_S / 3)
    server.start()


def _freeze(server: Valkey) -> None:
    with server.frozen():
        time.sleep(AWAY_S)


def _fill(server: Valkey) -> None:
    server.run("CONFIG", "SET", "maxmemory", "1mb")
    time.sleep(AWAY_S)
    server.run("CONFIG", "SET", "maxmemory", "0")


async def _remote(gateway: Served) -> Remote:
    """One that has shaken hands, also where the first try falls into the harm."""
    remote = Remote(gateway.port)
    for _ in range(100):
        with contextlib.suppress(OSError, EOFError, TimeoutError, AssertionError):
            await remote.handshake()
            return remote
        await asyncio.sleep(0.1)
    raise AssertionError("no handshake within 10 s")
