"""A process of its own that asks for healthz ten times a second.

    python -m loadgen.probe URL

Ends when its stdin does. A line per probe on stdout: when it was due, how long until its end, how
late it was sent, and what came of it. No probe waits for another one: each takes an idle connection
or opens one, and its latency counts from when it was due, so that a server that stops is seen for
as long as it stopped. The process asks for a better priority than the load has, where it may.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from typing import Final

import uvloop

from loadgen.address import Address, address

EVERY_S: Final = 0.1
NO_ANSWER_S: Final = 30.0
PATH: Final = b"/api/v1/healthz"
NICE: Final = -10

ANSWERED: Final = "ok"
FAILED: Final = "failed"
OVERDUE: Final = "overdue"
PENDING: Final = "pending"
"""Without an answer when the run ended: its latency is at least what is written."""

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Prober:
    """The probes of one server."""

    def __init__(self, where: Address) -> None:
        self._where = where
        self._request = b"GET %b%b HTTP/1.1\r\nhost: %b\r\n\r\n" % (
            where.prefix,
            PATH,
            where.host.encode(),
        )
        self._idle: list[Wire] = []

    async def probe(self, due: float) -> None:
        """One of them; writes its line whatever comes of it."""
        sent = time.monotonic()
        # The loop's timers have milliseconds: one that comes early is timed from when it was sent.
        begun = min(due, sent)
        word = FAILED
        try:
            async with asyncio.timeout(NO_ANSWER_S):
                if await self._ask():
                    word = ANSWERED
        except TimeoutError:
            word = OVERDUE
        except asyncio.CancelledError:
            word = PENDING
        except (OSError, EOFError, ValueError):
            pass
        now = time.monotonic()
        sys.stdout.write(f"{due:.6f} {now - begun:.6f} {sent - begun:.6f} {word}\n")
        sys.stdout.flush()

    async def _ask(self) -> bool:
        """Whether it was answered with 200."""
        while self._idle and self._idle[-1][0].at_eof():  # idle for longer than the server keeps it
            self._idle.pop()[1].close()
        if self._idle:
            wire = self._idle.pop()
        else:
            wire = await asyncio.open_connection(self._where.host, self._where.port)
        reader, writer = wire
        try:
            writer.write(self._request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        except BaseException:
            writer.close()
            raise
        if b"\r\nconnection: close" in head:
            writer.close()
        else:
            self._idle.append(wire)
        return head.startswith(b"http/1.1 200 ")


async def main(url: str) -> None:
    with contextlib.suppress(OSError):  # no right to it
        os.nice(NICE)
    gc.disable()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    prober = Prober(address(url))
    probes: set[asyncio.Task[None]] = set()
    due = time.monotonic()
    while not ended.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), max(0.0, due - time.monotonic()))
            break
        probe = asyncio.create_task(prober.probe(due))
        probes.add(probe)
        probe.add_done_callback(probes.discard)
        due += EVERY_S
    left = list(probes)
    for probe in left:
        probe.cancel()
    await asyncio.gather(*left, return_exceptions=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
