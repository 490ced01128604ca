"""A relay between a client and a gateway, for what lies between them in the field.

It loses replies, changes what clients send, and notes what kind of answer each request got. It
knows HTTP/1.1 with one request at a time on a connection, as the SDK speaks it, and no more.
"""

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from typing import NamedTuple

_TARGET = re.compile(rb"[A-Z]+ (\S+) HTTP/1\.1\r\n")
_ACCEPT = re.compile(rb"\r\naccept: *([^\r]*)", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_CONTENT_TYPE = re.compile(rb"\r\ncontent-type: *([^\r;]*)", re.IGNORECASE)


class Reply(NamedTuple):
    target: str
    accept: str
    status: int
    content_type: str


class Relay:
    """In front of a local port, with knobs that may be turned at any time.

    lose: the target whose next reply never arrives; its connection is closed instead.
    replace: bytes in what clients send, and what stands there instead; only for headers.
    replies, lost: what arrived at clients, and how many did not.
    """

    def __init__(self, port: int) -> None:
        self.url = ""
        self.lose: str | None = None
        self.replace: tuple[bytes, bytes] | None = None
        self.replies: list[Reply] = []
        self.lost = 0
        self._port = port
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def stop(self, server: asyncio.Server) -> None:
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_connection("127.0.0.1", self._port)
        asked = ["", ""]
        ways = [
            asyncio.create_task(self._up(reader, questions, asked)),
            asyncio.create_task(self._down(answers, writer, asked)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, questions):
                end.close()

    async def _up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[str]
    ) -> None:
        while data := await reader.read(65_536):
            if found := _TARGET.match(data):
                asked[:] = found[1].decode(), _header(_ACCEPT, data)
            if self.replace is not None:
                data = data.replace(*self.replace)
            writer.write(data)
            await writer.drain()

    async def _down(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[str]
    ) -> None:
        while data := await reader.read(65_536):
            if found := _STATUS.match(data):
                if asked[0] == self.lose:
                    self.lose = None
                    self.lost += 1
                    return
                target, accept = asked
                kind = _header(_CONTENT_TYPE, data)
                self.replies.append(Reply(target, accept, int(found[1]), kind))
            writer.write(data)
            await writer.drain()


def _header(pattern: re.Pattern[bytes], data: bytes) -> str:
    found = pattern.search(data.partition(b"\r\n\r\n")[0])
    return found[1].decode() if found else ""


@contextlib.contextmanager
def relay(port: int) -> Iterator[Relay]:
    """In a thread of its own."""
    relayed = Relay(port)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(relayed.start(), loop).result(5)
    try:
        yield relayed
    finally:
        asyncio.run_coroutine_threadsafe(relayed.stop(server), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
