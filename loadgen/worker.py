"""A process of the client: `python -m loadgen.worker`, started and told what to do by `fleet`.

Lines on stdin: an Order as JSON, then `go T` with T of the monotonic clock, which all processes of
a machine share, then end of file for a stop. Lines on stdout: `ready` or `error TEXT`, a Progress
as JSON twice a second, and `ended`. The ledger goes to a file.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from loadgen.client import Client
from loadgen.plan import Plan
from loadgen.session import HandshakeError

PROGRESS_S: Final = 0.5


class Order(msgspec.Struct):
    """What a worker is to do, and the folder for its ledger and self-check."""

    plan: Plan
    process: int
    folder: str

    @property
    def ledger(self) -> Path:
        return Path(self.folder) / f"{self.process}.ledger"

    @property
    def check(self) -> Path:
        return Path(self.folder) / f"{self.process}.check"


class Progress(msgspec.Struct):
    """Counts since the start; cpu_s of this process."""

    t: float
    accepted: int
    settled: int
    failed: int
    polls: int
    cpu_s: float


async def work(order: Order, lines: asyncio.StreamReader) -> None:
    client = Client(order.plan, order.process)
    try:
        try:
            await client.prepare()
        except HandshakeError as error:
            _say(f"error {error}")
            return
        gc.collect()
        gc.freeze()
        _say("ready")
        command = (await lines.readline()).split()
        if len(command) != 2:
            return
        start = float(command[1])
        await asyncio.sleep(start - time.monotonic())
        ended = asyncio.create_task(lines.read())
        reporting = asyncio.create_task(_report(client))
        await client.drive(start, ended.done)
        reporting.cancel()
        check = client.check.stop()
        _say(msgspec.json.encode(_progress(client)).decode())
        await client.finish()
        client.ledger.save(order.ledger)
        order.check.write_bytes(msgspec.json.encode(check))
        _say("ended")
        ended.cancel()
    finally:
        client.close()


async def _report(client: Client) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        _say(msgspec.json.encode(_progress(client)).decode())


def _progress(client: Client) -> Progress:
    ledger = client.ledger
    return Progress(
        t=time.monotonic(),
        accepted=ledger.accepted_count,
        settled=ledger.count - ledger.open,
        failed=ledger.failed,
        polls=ledger.traffic.polls,
        cpu_s=time.process_time(),
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await work(msgspec.json.decode(await lines.readline(), type=Order), lines)


if __name__ == "__main__":
    import uvloop

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.set_threshold(50_000, 20, 100)
    uvloop.run(main())
