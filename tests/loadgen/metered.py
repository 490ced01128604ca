"""A server whose health and metrics a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Metered:
    """Answers `health` and `metrics`; while `stopped` is set it answers nothing."""

    def __init__(self) -> None:
        self.metrics = ""
        self.health = 200
        self.going = asyncio.Event()
        self.going.set()
        self.asked = 0
        self.connections = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self.going.wait()
                if head.startswith(b"GET /metrics"):
                    status, body = (200 if self.metrics else 404), self.metrics.encode()
                else:
                    self.asked += 1
                    status, body = self.health, b"{}"
                close = b"connection: close\r\n" if b"connection: close" in head else b""
                writer.write(
                    b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n%b\r\n%b"
                    % (status, len(body), close, body)
                )
                if close:
                    break
        except (EOFError, OSError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def metered() -> AsyncIterator[tuple[Metered, str]]:
    """The server and its URL."""
    made = Metered()
    server = await asyncio.start_server(made._serve, "127.0.0.1", 0)
    try:
        yield made, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        made.going.set()
        server.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until it is so; processes take their time to start on a busy machine."""
    for _ in range(6_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen within 30 seconds")
