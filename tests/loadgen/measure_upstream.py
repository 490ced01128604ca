"""CPU the stand-in needs per answer: `python -m tests.loadgen.measure_upstream`.

Not a test: no threshold would hold on every machine. The client is as bare as it can be, and runs
on uvloop, so that on two cores the server is the busier side. Linux only, for /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import uvloop

SEEDS: Final = 1_000
"""Enough to read all of the tape, so that its place in the caches is the usual one."""


class Caller(asyncio.Protocol):
    """Sends the next request as soon as an answer is whole, `left` times, in rotation."""

    def __init__(self, requests: Sequence[bytes], left: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._left = left
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(self._requests[self._left % len(self._requests)])

    def connection_lost(self, _: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("closed before its last answer"))

    def data_received(self, data: bytes) -> None:
        if self._missing == 0:
            # Heads are a hundred bytes and come with the first piece of the body or alone.
            head, _, body = data.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                self._transport.abort()
                return
            self._missing = int(head.rsplit(b"content-length: ", 1)[1]) - len(body)
        else:
            self._missing -= len(data)
        if self._missing == 0:
            self._left -= 1
            if self._left:
                self._transport.write(self._requests[self._left % len(self._requests)])
            else:
                self.done.set_result(None)
                self._transport.close()


def cpu_s(pid: int) -> float:
    """Seconds on a core so far, user and system together."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def request(prompt_tokens: int, max_tokens: int, seed: int) -> bytes:
    body = json.dumps(
        {
            "model": "stand-in",
            "prompt": [(i * 7919 + 13) % 121_000 for i in range(prompt_tokens)],
            "max_tokens": max_tokens,
            "seed": seed,
            "logprobs": 0,
            "return_token_ids": True,
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:8001\r\nAccept: */*\r\n"
        "Content-Type: application/json\r\nX-Request-Id: measured\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def measure(
    pid: int, port: int, requests: Sequence[bytes], *, connections: int, each: int
) -> str:
    loop = asyncio.get_running_loop()
    began, cpu_began = time.perf_counter(), cpu_s(pid)
    pairs = await asyncio.gather(
        *(
            loop.create_connection(lambda: Caller(requests, each), "127.0.0.1", port)
            for _ in range(connections)
        )
    )
    await asyncio.gather(*(caller.done for _, caller in pairs))
    took, cpu = time.perf_counter() - began, cpu_s(pid) - cpu_began
    count = connections * each
    return f"{count / took:10,.0f}/s {cpu / count * 1e6:12,.1f} us CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--delay-s", default="0")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "loadgen", "upstream", "--port", "0"]
    with subprocess.Popen(
        [*command, "--delay-s", arguments.delay_s], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        print(f"{'prompt':>8} {'answer':>8} {'rate':>12} {'per answer':>19}")
        try:
            for prompt_tokens, max_tokens, count in (
                (32, 1, 40_000),
                (32, 16, 40_000),
                (1024, 16, 10_000),
                (32, 512, 10_000),
                (32, 8192, 1_000),
                (32, 32_768, 300),
            ):
                line = uvloop.run(
                    measure(
                        server.pid,
                        port,
                        [request(prompt_tokens, max_tokens, seed) for seed in range(SEEDS)],
                        connections=arguments.connections,
                        each=max(1, count // arguments.connections),
                    )
                )
                print(f"{prompt_tokens:8,} {max_tokens:8,} {line}", flush=True)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
