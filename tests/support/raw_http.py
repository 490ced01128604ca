"""Requests and answers as bytes, for a server behind its front door."""

import asyncio
import contextlib

from tests.support.guarded_app import Guarded

WITHIN_S = 20.0


def request(
    *headers: bytes, target: bytes = b"/", method: bytes = b"GET", body: bytes = b""
) -> bytes:
    head = b"".join(header + b"\r\n" for header in headers)
    return method + b" " + target + b" HTTP/1.1\r\n" + head + b"\r\n" + body


async def all_that_comes(reader: asyncio.StreamReader) -> bytes:
    """Until the end of the connection, however it ends."""
    got = b""
    async with asyncio.timeout(WITHIN_S):
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                got += piece
    return got


async def told(server: Guarded, sent: bytes) -> bytes:
    """All that a connection brings for these bytes until it is closed."""
    reader, writer = await server.connect()
    writer.write(sent)
    got = await all_that_comes(reader)
    writer.close()
    return got


def statuses(got: bytes) -> list[int]:
    return [int(part[:3]) for part in got.split(b"HTTP/1.1 ")[1:]]


async def one_answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WITHIN_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head + await reader.readexactly(length)
