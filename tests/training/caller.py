"""A client by hand: raw requests, and answers of which it is known whether they are whole."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import msgspec

from tests.training.target import Heard

WITHIN_S = 20.0


class Answer(msgspec.Struct):
    """`whole` is False where the framing promised more than came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def heard(self) -> Heard:
        assert self.status == 200, self
        return msgspec.json.decode(self.body, type=Heard)


class Call:
    """One request on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, method: str, target: str, *lines: str, body: bytes = b"") -> None:
        """The head, closed by `connection: close`, and the body if there is one."""
        head = [f"{method} {target} HTTP/1.1", "host: front.example", *lines, "connection: close"]
        self.writer.write("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
        await self.writer.drain()

    async def stream(self, pieces: Iterable[bytes]) -> None:
        """A chunked body."""
        for piece in pieces:
            self.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await self.writer.drain()
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        async with asyncio.timeout(WITHIN_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        split = (line.partition(":") for line in lines)
        return int(first.split(" ")[1]), [(name.lower(), value.strip()) for name, _, value in split]

    async def chunk(self) -> bytes:
        """The next piece of a chunked body; empty at its end."""
        async with asyncio.timeout(WITHIN_S):
            size = int(await self.reader.readline(), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self, method: str = "GET") -> Answer:
        status, headers = await self.head()
        told = dict(headers)
        body, whole = b"", True
        async with asyncio.timeout(WITHIN_S):
            if "chunked" in told.get("transfer-encoding", ""):
                try:
                    while piece := await self.chunk():
                        body += piece
                except (asyncio.IncompleteReadError, ValueError, ConnectionError):
                    whole = False
            elif method == "HEAD" or status in (204, 304):
                body = await self.reader.read()
            else:
                with contextlib.suppress(ConnectionError):
                    body = await self.reader.read()
                whole = len(body) == int(told["content-length"])
        return Answer(status, headers, body, whole)


@contextlib.asynccontextmanager
async def call(port: int) -> AsyncIterator[Call]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Call(reader, writer)
    finally:
        writer.close()


async def ask(port: int, method: str, target: str, *lines: str, body: bytes = b"") -> Answer:
    """One whole request and its answer; a body is sent with its length."""
    framing = [f"content-length: {len(body)}"] if body else []
    async with call(port) as one:
        await one.send(method, target, *lines, *framing, body=body)
        return await one.answer(method)
