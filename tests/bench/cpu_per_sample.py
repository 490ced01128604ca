"""CPU time of the gateway per sample: stand-in upstream and client on one core, gateway on another.

    python -m tests.bench.cpu_per_sample --in-flight 512 --samples 20000

Every sample is one `asample` and as many `retrieve_future` as it takes. Figures are of the gateway
process alone, from /proc, user and system; bounded in count, loopback only.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from typing import Any, cast

import httptools
import msgspec
import uvloop

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time; the leanest client there is."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._parser: Any = None
        self._waiter: asyncio.Future[tuple[int, bytes]] | None = None
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result((self._parser.get_status_code(), b"".join(self._body)))

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error or ConnectionError("closed"))

    async def post(self, path: bytes, body: bytes) -> tuple[int, bytes]:
        self._parser = httptools.HttpResponseParser(self)
        self._body = []
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(
            b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"accept: application/x-protobuf\r\nx-stainless-package-version: 0.38.0\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        return await self._waiter


async def connect(port: int) -> Connection:
    _, protocol = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return protocol


async def handshake(port: int) -> str:
    connection = await connect(port)
    _, body = await connection.post(b"/api/v1/create_session", b"{}")
    session = msgspec.json.decode(body)["session_id"]
    request = {
        "session_id": session,
        "sampling_session_seq_id": 0,
        "base_model": "stand-in",
    }
    _, body = await connection.post(
        b"/api/v1/create_sampling_session", msgspec.json.encode(request)
    )
    connection.transport.close()
    return str(msgspec.json.decode(body)["sampling_session_id"])


async def worker(port: int, target: str, numbers: "list[int]", tokens: int) -> None:
    connection = await connect(port)
    while numbers:
        number = numbers.pop()
        prompt = ",".join(str((number * 31 + i * 7919) % 100_000) for i in range(64))
        submit = (
            f'{{"sampling_session_id":"{target}","seq_id":{number},"num_samples":1,'
            f'"prompt":{{"chunks":[{{"type":"encoded_text","tokens":[{prompt}]}}]}},'
            f'"sampling_params":{{"max_tokens":{tokens},"temperature":1.0,"top_k":-1,"top_p":1.0}},'
            '"prompt_logprobs":false,"topk_prompt_logprobs":0,"type":"sample"}'
        )
        status, body = await connection.post(b"/api/v1/asample", submit.encode())
        if status != 200:
            raise RuntimeError(f"asample answered {status}: {body!r}")
        request_id = msgspec.json.decode(body)["request_id"]
        poll = msgspec.json.encode({"request_id": request_id, "allow_metadata_only": False})
        status = 408
        while status == 408:
            status, body = await connection.post(b"/api/v1/retrieve_future", poll)
        if status != 200 or len(body) < 8 * tokens:
            raise RuntimeError(f"retrieve_future answered {status} with {len(body)} bytes")
    connection.transport.close()


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


async def drive(port: int, in_flight: int, samples: int, first: int, tokens: int) -> None:
    target = await handshake(port)
    numbers = list(range(first, first + samples))
    await asyncio.gather(*(worker(port, target, numbers, tokens) for _ in range(in_flight)))


def start(core: int, *command: str) -> tuple[subprocess.Popen[str], int]:
    child = subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    return child, int(child.stdout.readline().rpartition(":")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-flight", type=int, default=512)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {1})
    upstream, upstream_port = start(1, "loadgen", "upstream", "--port", "0")
    url = f"http://127.0.0.1:{upstream_port}"
    gateway, port = start(0, "asgi_gateway", "serve", "--port", "0", "--upstream", url)
    figures = []
    try:
        for run in range(arguments.runs + 1):  # the first warms up and is not counted
            before, began = cpu_s(gateway.pid), time.monotonic()
            first = run * arguments.samples
            uvloop.run(drive(port, arguments.in_flight, arguments.samples, first, arguments.tokens))
            elapsed_s = time.monotonic() - began
            per_sample_ms = (cpu_s(gateway.pid) - before) / arguments.samples * 1000
            if run:
                figures.append(per_sample_ms)
                print(f"{per_sample_ms:.3f} ms CPU a sample, {arguments.samples / elapsed_s:.0f}/s")
        print(f"median {statistics.median(figures):.3f} ms of CPU a sample")
    finally:
        for child in (gateway, upstream):
            child.terminate()
            child.wait()


if __name__ == "__main__":
    main()
