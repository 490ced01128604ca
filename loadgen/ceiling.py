"""What the stand-in can do on this machine, so that nobody takes its limit for the server's.

The client is as bare as it can be, and runs on uvloop, so that on two cores the stand-in is the
busier side. CPU per request is the figure to compare by: the rate shares the machine with others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

import msgspec
import uvloop

from loadgen.procfs import usage_of_tree
from loadgen.serving import ListenError, Whole
from loadgen.settings import Settings

SEEDS: Final = 1_000
"""Enough to read all of the tape, so that its place in the caches is the usual one."""

STOP_WITHIN_S: Final = 5.0
ANSWER_WITHIN_S: Final = 20.0

SIZES: Final = ((32, 1), (32, 16), (1_024, 16), (32, 512), (32, 8_192), (32, 32_768))
"""Tokens of the prompt and of the answer."""


class Ceiling(NamedTuple):
    """One size. `per_s` is what was reached, `cpu_s` the stand-in's CPU time per request.

    client_share: CPU time of the measuring client per second; near 1 it was the limit.
    """

    prompt_tokens: int
    max_tokens: int
    per_s: float
    cpu_s: float
    client_share: float

    @property
    def per_core_s(self) -> float:
        """Requests per second on a core of its own."""
        return 1 / self.cpu_s if self.cpu_s > 0 else float("inf")


class Caller(asyncio.Protocol):
    """Sends the next request as soon as an answer is whole, in rotation, until time is up."""

    def __init__(self, requests: Sequence[bytes], until: float) -> None:
        """until: of the monotonic clock."""
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers = 0
        self._requests = requests
        self._until = until
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(self._requests[0])

    def connection_lost(self, _: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_exception(ConnectionError("closed before its last answer"))

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
            self.answers += 1
            if time.monotonic() < self._until:
                self._transport.write(self._requests[self.answers % len(self._requests)])
            else:
                self.finished.set_result(None)
                self._transport.close()


def request(prompt_tokens: int, max_tokens: int, seed: int, model: str = "stand-in") -> bytes:
    """One completion as a gateway asks for it."""
    body = json.dumps(
        {
            "model": model,
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
    pid: int,
    host: str,
    port: int,
    size: tuple[int, int],
    *,
    connections: int = 64,
    seconds: float = 1.5,
    model: str = "stand-in",
) -> Ceiling:
    """Drive the stand-in of this pid and its children.

    Raises ConnectionError where it fails, TimeoutError where it does not answer.
    """
    requests = [request(*size, seed, model) for seed in range(SEEDS)]
    loop = asyncio.get_running_loop()
    began, own_began, cpu_began = time.monotonic(), time.process_time(), _cpu_s(pid)
    pairs = await asyncio.gather(
        *(
            loop.create_connection(lambda: Caller(requests, began + seconds), host, port)
            for _ in range(connections)
        )
    )
    async with asyncio.timeout(seconds + ANSWER_WITHIN_S):
        await asyncio.gather(*(caller.finished for _, caller in pairs))
    took, cpu = time.monotonic() - began, _cpu_s(pid) - cpu_began
    count = sum(caller.answers for _, caller in pairs)
    share = (time.process_time() - own_began) / took
    return Ceiling(*size, per_s=count / took, cpu_s=cpu / count, client_share=share)


def _cpu_s(pid: int) -> float:
    found = usage_of_tree(pid)
    if found is None:
        raise ConnectionError("the stand-in has ended")
    return found.cpu_s


@contextlib.contextmanager
def started(settings: Settings, processes: int = 1) -> Iterator[tuple[int, int]]:
    """A stand-in of its own, with these settings: its pid and its port. Raises ListenError."""
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen.serving"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write(msgspec.json.encode(Whole(settings, processes)) + b"\n")
            server.stdin.flush()
            line = server.stdout.readline().decode().strip()
            if not line:
                raise ListenError("the stand-in to be measured did not start")
            yield server.pid, int(line.rsplit(":", 1)[1])
        finally:
            server.terminate()
            try:
                server.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                server.kill()


def ceilings(
    settings: Settings,
    processes: int = 1,
    *,
    sizes: Sequence[tuple[int, int]] = SIZES,
    connections: int = 64,
    seconds: float = 1.5,
) -> Iterator[Ceiling]:
    """Each size in turn; bodies and token counts as `settings` say, without waits or faults."""
    bare = settings._replace(
        port=0, delay_s=0.0, max_num_seqs=None, barrier=None, faults=False, script=""
    )
    with started(bare, processes) as (pid, port):
        for size in sizes:
            if sum(size) <= settings.max_model_len:
                yield uvloop.run(
                    measure(
                        pid,
                        settings.hosts[0],
                        port,
                        size,
                        connections=connections,
                        seconds=seconds,
                        model=settings.models[0],
                    )
                )


HEAD: Final = f"{'prompt':>8} {'answer':>8} {'reached':>12} {'CPU each':>12} {'a core':>12} client"


def line(found: Ceiling) -> str:
    return (
        f"{found.prompt_tokens:8,} {found.max_tokens:8,} {found.per_s:10,.0f}/s "
        f"{found.cpu_s * 1e6:9,.1f} us {found.per_core_s:10,.0f}/s {found.client_share:5.0%}"
    )


def report(settings: Settings, processes: int = 1) -> None:
    """Print the table, a line as soon as it is known."""
    print(HEAD, flush=True)
    for found in ceilings(settings, processes):
        print(line(found), flush=True)
