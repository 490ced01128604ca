"""A scripted upstream on a real socket: it says what a test tells it to, byte for byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

MODELS: dict[str, Any] = {
    "object": "list",
    "data": [{"id": "stand-in", "max_model_len": 65536, "parent": None}],
}


class Request(msgspec.Struct):
    """What arrived: `connection` counts the upstream's connections, `hung_up` is set at its end."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    hung_up: asyncio.Event

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Raw(msgspec.Struct):
    """Bytes to write as they are; `then` is "keep", "close" or "reset" the connection."""

    data: bytes = b""
    then: str = "close"


Script = Callable[[Request], "Awaitable[Raw]"]


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

    `models` is what /v1/models says.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.script: Script = _two_tokens
        self.models: dict[str, Any] = MODELS
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        hung_up = asyncio.Event()
        try:
            while (request := await _read(reader, number, hung_up)) is not None:
                if request.path == "/v1/models":
                    raw = answer(200, self.models)
                else:
                    self.requests.append(request)
                    raw = await self._scripted(request, reader)
                writer.write(raw.data)
                if raw.then == "reset":
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

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["FakeUpstream"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", port, limit=1 << 22)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


async def _awaited(awaitable: Awaitable[Raw]) -> Raw:
    return await awaitable


async def _two_tokens(request: Request) -> Raw:
    return answer(200, completion([11, 12], [-1.0, -2.0], n=request.json()["n"]))


async def _read(
    reader: asyncio.StreamReader, connection: int, hung_up: asyncio.Event
) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, connection, hung_up)
