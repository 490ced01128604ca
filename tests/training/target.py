"""A trainer by hand: sees requests as they are on the wire and answers with raw bytes."""

import asyncio
import contextlib
import hashlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import msgspec

_LINGER_NOT = struct.pack("ii", 1, 0)


class Heard(msgspec.Struct):
    """What `echo` answers: the request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    length: int
    sha256: str

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


class Request:
    """A request whose body is still on the wire; `nth` counts from 1 on its connection."""

    def __init__(
        self,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: int,
        nth: int,
    ) -> None:
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers = [
            (name, value.strip()) for name, _, value in (line.partition(":") for line in lines)
        ]
        self.connection = connection
        self.nth = nth
        self.hung_up = asyncio.Event()
        self._reader = reader
        self._writer = writer

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name]
        assert len(found) < 2, f"{name} came twice: {found}"
        return found[0] if found else None

    @property
    def chunked(self) -> bool:
        return self.header("transfer-encoding") == "chunked"

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        if self.chunked:
            while size := int(await self._reader.readline(), 16):
                yield await self._reader.readexactly(size)
                await self._reader.readexactly(2)
            await self._reader.readexactly(2)
            return
        left = int(self.header("content-length") or 0)
        while left:
            piece = await self._reader.read(min(left, 1 << 16))
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
            yield piece

    async def heard(self) -> Heard:
        digest, length = hashlib.sha256(), 0
        async for piece in self.pieces():
            digest.update(piece)
            length += len(piece)
        return Heard(self.method, self.target, self.headers, length, digest.hexdigest())

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, status: int, body: bytes = b"", *lines: str) -> None:
        """A whole answer, kept alive; `lines` are more headers."""
        head = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *lines]
        await self.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)

    def hang_up(self, *, reset: bool = False) -> None:
        if reset:
            raw = self._writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def wait_for_hang_up(self) -> None:
        """Until the proxy closes the connection; bytes before that are dropped."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(1 << 16):
                pass
        self.hung_up.set()


Script: TypeAlias = Callable[[Request], Awaitable[None]]


async def echo(request: Request) -> None:
    await request.answer(200, msgspec.json.encode(await request.heard()))


class Target:
    """`script` answers each request; those that came are in `requests`."""

    def __init__(self) -> None:
        self.script: Script = echo
        self.requests: list[Request] = []
        self.connections = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection, nth = self.connections, 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                nth += 1
                request = Request(head[:-4], reader, writer, connection, nth)
                self.requests.append(request)
                await self.script(request)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if self.requests:
                self.requests[-1].hung_up.set()
            writer.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["Target"]:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, limit=1 << 16)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
