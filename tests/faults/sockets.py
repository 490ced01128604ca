"""Many connections by hand: that send slowly, read nothing, or leave."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from collections.abc import Callable
from typing import Final, cast

import msgspec

from tests.support.wire import SDK_HEADERS

LINGER_NOT: Final = struct.pack("ii", 1, 0)
AT_ONCE: Final = 100
CONNECT_S: Final = 20.0


def raise_limit() -> None:
    """As many descriptors as this process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def request(path: str, body: object, *, protobuf: bool = False) -> bytes:
    """A whole POST. body: bytes as they are, anything else as JSON."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"POST {path} HTTP/1.1", "host: gateway", f"content-length: {len(data)}"]
    lines += ["content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in SDK_HEADERS.items()]
    if protobuf:
        lines.append("accept: application/x-protobuf")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


def poll_of(request_id: str) -> bytes:
    body = {"request_id": request_id, "allow_metadata_only": False}
    return request("/api/v1/retrieve_future", body, protobuf=True)


class Peer(asyncio.Protocol):
    """One connection. status: of its answer, 0 before it; gone: whether the server closed it."""

    def __init__(self, data: bytes, *, reads: bool = True) -> None:
        self.data = data
        self._reads = reads
        self.status = 0
        self.gone = False
        self.got = 0
        self.answered_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.data)
        if not self._reads:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if not self.got:
            self.answered_at = asyncio.get_running_loop().time()
            if data.startswith(b"HTTP/1.1 "):
                self.status = int(data[9:12])
        self.got += len(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True

    def leave(self) -> None:
        """Reset, as a client does that dies."""
        raw = self.transport.get_extra_info("socket")
        if raw is not None and not self.transport.is_closing():
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        self.transport.abort()


async def opened(
    port: int, count: int, data: Callable[[int], bytes], *, reads: bool = True, buffer: int = 0
) -> list[Peer]:
    """So many connections, some at a time. buffer: receive buffer in bytes, 0 for the usual."""
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Peer:
        async with gate, asyncio.timeout(CONNECT_S):
            raw = socket.socket()
            raw.setblocking(False)
            if buffer:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            await loop.sock_connect(raw, ("127.0.0.1", port))
            _, peer = await loop.create_connection(
                lambda: Peer(data(number), reads=reads), sock=raw
            )
            return peer

    return list(await asyncio.gather(*(one(number) for number in range(count))))


def close_all(peers: list[Peer]) -> None:
    for peer in peers:
        peer.leave()


async def settled(found: Callable[[], object], within_s: float) -> float | None:
    """Seconds until `found()`, None where it never is; of things in this very loop."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not found():
        if loop.time() - began > within_s:
            return None
        await asyncio.sleep(0.01)
    return loop.time() - began
