"""A process of its own that asks for healthz ten times a second and looks at the gateway's /proc.

    python -m tests.support.flood.probe PORT PID

Ends when its stdin does. A line per probe on stdout: when it was due, how long until its answer,
and the gateway's resident memory. No probe waits for another one: each takes an idle connection or
opens one, and its latency counts from when it was due, so that a gateway that stops is seen for as
long as it stopped.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

EVERY_S: Final = 0.1
NO_ANSWER_S: Final = 30.0
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
REQUEST: Final = b"GET /api/v1/healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
HEALTHY: Final = b'{"status":"ok"}'

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Seen(NamedTuple):
    """One probe; times in seconds of the monotonic clock, which all processes share."""

    at: float
    latency_s: float
    rss_bytes: int


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def rss_bytes_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def parse(line: str) -> Seen:
    at, latency_s, rss_bytes = line.split()
    return Seen(float(at), float(latency_s), int(rss_bytes))


async def _probe(port: int, pid: int, idle: list[Wire], due: float) -> None:
    latency_s = NO_ANSWER_S
    while idle and idle[-1][0].at_eof():  # idle for longer than the gateway keeps a connection
        idle.pop()[1].close()
    try:
        async with asyncio.timeout(NO_ANSWER_S):
            wire = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
            wire[1].write(REQUEST)
            head = await wire[0].readuntil(b"\r\n\r\n")
            body = await wire[0].readexactly(len(HEALTHY))
        if head.startswith(b"HTTP/1.1 200 ") and body == HEALTHY:
            latency_s = time.monotonic() - due
            idle.append(wire)
        else:
            wire[1].close()
    except (OSError, TimeoutError, EOFError):
        pass
    sys.stdout.write(f"{due:.6f} {latency_s:.6f} {rss_bytes_of(pid)}\n")
    sys.stdout.flush()


async def main(port: int, pid: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    idle: list[Wire] = []
    probes: set[asyncio.Task[None]] = set()
    due = time.monotonic()
    while not ended.is_set():
        await asyncio.sleep(due - time.monotonic())
        probe = asyncio.create_task(_probe(port, pid, idle, due))
        probes.add(probe)
        probe.add_done_callback(probes.discard)
        due += EVERY_S


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
