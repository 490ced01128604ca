"""A scripted upstream on a real socket: it says what a test tells it to, byte for byte."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import msgspec

# close() then sends RST at once instead of FIN.
LINGER_NOT = struct.pack("ii", 1, 0)

MODELS: dict[str, Any] = {
    "object": "list",
    "data": [{"id": "stand-in", "max_model_len": 65536, "parent": None}],
}


class Request(msgspec.Struct):
    """What arrived: `connection` counts the upstream's connections, `hung_up` is set at its end.

    `nth` is the request's number on its connection, from 1: above it the connection was reused.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    nth: int
    hung_up: asyncio.Event
    writer: asyncio.StreamWriter

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    async def write(self, data: bytes) -> None:
        """Send a first part of the answer; the script returns the rest."""
        self.writer.write(data)
        await self.writer.drain()


class Raw(msgspec.Struct):
    """Bytes to write as they are; `then` is "keep", "close" or "reset" the connection."""

    data: bytes = b""
    then: str = "close"


Script = Callable[[Request], "Awaitable[Raw]"]


def in_order(*answers: Raw) -> Script:
    """One answer after the other, the last one ever after."""
    left = list(answers)

    async def script(_: Request) -> Raw:
        return left.pop(0) if len(left) > 1 else left[0]

    return script


def answer(
    status: int,
    body: bytes | object,
    *,
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
) -> Raw:
    """A whole HTTP answer; anything that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [
        f"HTTP/1.1 {status} X",
        f"content-type: {content_type}",
        f"content-length: {len(data)}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return Raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data, "keep")


def completion(
    tokens: list[int], logprobs: list[float | None] | None, *, n: int = 1, **choice: object
) -> dict[str, Any]:
    """A completion body with the fields that decoding reads, the same choice n times."""
    one = {
        "text": "",
        "logprobs": None if logprobs is None else {"token_logprobs": logprobs},
        "finish_reason": "length",
        "token_ids": tokens,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        **choice,
    }
    choices = [{"index": index, **one} for index in range(n)]
    return {"id": "cmpl-x", "choices": choices, "usage": {"prompt_tokens_details": None}}


class FakeUpstream:
    """`script` decides the answer to every completion; requests are kept in `requests`.

    `active` is how many of them are being answered now, `peak` the most there ever were. `health`
    decides the answer to a health check; they are counted apart.
    """

    def __init__(self, models: dict[str, Any] = MODELS) -> None:
        self.models = models
        self.requests: list[Request] = []
        self.connections = 0
        self.active = 0
        self.peak = 0
        self.script: Script = _two_tokens
        self.health: Script = _alive
        self.asked_for_health = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        hung_up = asyncio.Event()
        nth = 0
        try:
            while (head := await _head(reader)) is not None:
                nth += 1
                request = await _read(head, reader, writer, number, nth, hung_up)
                if request.path.endswith("/v1/models"):
                    # Closed, so that the first completion always has a new connection.
                    listed = answer(200, self.models, headers={"connection": "close"})
                    raw = Raw(listed.data, "close")
                elif request.path.endswith("/health"):
                    self.asked_for_health += 1
                    raw = await self.health(request)
                else:
                    raw = await self._counted(request, reader)
                writer.write(raw.data)
                if raw.then == "reset":
                    raw_socket = writer.get_extra_info("socket")
                    raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
                    writer.transport.abort()
                    return
                await writer.drain()
                if raw.then == "close":
                    return
        except ConnectionError:
            pass
        finally:
            hung_up.set()
            writer.close()

    async def _counted(self, request: Request, reader: asyncio.StreamReader) -> Raw:
        self.requests.append(request)
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            return await self._scripted(request, reader)
        finally:
            self.active -= 1

    async def _scripted(self, request: Request, reader: asyncio.StreamReader) -> Raw:
        """Run the script, and notice when the client hangs up before it has answered."""
        script = asyncio.ensure_future(_awaited(self.script(request)))
        watch = asyncio.ensure_future(reader.read(1))
        await asyncio.wait([script, watch], return_when=asyncio.FIRST_COMPLETED)
        if watch.done():
            request.hung_up.set()
        else:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        if not script.done() and request.hung_up.is_set():
            script.cancel()
            return Raw()
        return await script

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0, *, host: str = "127.0.0.1") -> AsyncIterator[Self]:
        server = await asyncio.start_server(self._accept, host, port, limit=1 << 22)
        self.url = f"http://{host}:{server.sockets[0].getsockname()[1]}"
        self._server = server
        try:
            yield self
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Listen no more and drop every connection; further connects are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _awaited(awaitable: Awaitable[Raw]) -> Raw:
    return await awaitable


async def _two_tokens(request: Request) -> Raw:
    return answer(200, completion([11, 12], [-1.0, -2.0], n=request.json()["n"]))


async def _alive(_: Request) -> Raw:
    return Raw(answer(200, b"", headers={"connection": "close"}).data, "close")


async def _head(reader: asyncio.StreamReader) -> bytes | None:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None


async def _read(
    head: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    connection: int,
    nth: int,
    hung_up: asyncio.Event,
) -> Request:
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, connection, nth, hung_up, writer)
