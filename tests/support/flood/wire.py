"""One keep-alive connection of the flood's client; one request at a time, as in the SDK."""

import asyncio
from typing import Any, Final, NamedTuple, cast

import httptools

from tests.support.flood.ledger import Tally

JSON: Final = b"application/json"
PROTOBUF: Final = b"application/x-protobuf"

# What SDK 0.38 sends with every request, so that the gateway parses as much.
HEADERS: Final = (
    b" HTTP/1.1\r\nhost: 127.0.0.1\r\naccept-encoding: gzip, deflate, zstd\r\n"
    b"user-agent: AsyncTinker/Python 0.38.0\r\nx-stainless-lang: python\r\n"
    b"x-stainless-package-version: 0.38.0\r\nx-stainless-os: Linux\r\nx-stainless-arch: x64\r\n"
    b"x-stainless-runtime: CPython\r\nx-stainless-runtime-version: 3.11.7\r\n"
    b"x-stainless-async: async:asyncio\r\nx-stainless-retry-count: 0\r\n"
    b"x-stainless-read-timeout: 60\r\nx-api-key: tml-flood\r\n"
    b"x-idempotency-key: stainless-python-retry-6f1c1f3e-0b1d-4a52-9b8e-3d8f0c6a7e11\r\n"
    b"x-sdk-version: 0.38.0\r\ncontent-type: application/json\r\naccept: %b\r\n"
    b"content-length: %d\r\n\r\n%b"
)


class Answer(NamedTuple):
    status: int
    content_type: bytes
    body: bytes

    @property
    def shown(self) -> str:
        return f"{self.status} {self.body[:200].decode('utf-8', 'replace')}"


class Dropped(ConnectionError):
    """No connection, or it ended before a whole answer."""


class _Protocol(asyncio.Protocol):
    """Parses the answer that is awaited."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.waiter: asyncio.Future[Answer] | None = None
        self.lost = False
        self._parser: Any = httptools.HttpResponseParser(self)
        self._content_type = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._body = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"content-type":
            self._content_type = value

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        parts = self._body
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(Answer(self._parser.get_status_code(), self._content_type, body))
        if not self._parser.should_keep_alive():
            self.transport.close()
            self.lost = True

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(Dropped(str(error or "closed before its answer")))

    def overdue(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(TimeoutError())
            self.transport.abort()


class Link:
    """A connection that is opened when first needed, and again after a loss."""

    def __init__(self, port: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally
        self._protocol: _Protocol | None = None

    async def get(self, path: bytes) -> Answer:
        return await self._ask(b"GET " + path + HEADERS % (b"*/*", 0, b""), 60.0)

    async def post(
        self, path: bytes, body: bytes, *, accept: bytes = JSON, within_s: float = 60.0
    ) -> Answer:
        """The whole answer.

        Raises:
            Dropped: no connection, or lost before the answer.
            TimeoutError: no answer in time; the connection is closed, as the SDK does.
        """
        return await self._ask(b"POST " + path + HEADERS % (accept, len(body), body), within_s)

    async def _ask(self, request: bytes, within_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        protocol = self._protocol
        if protocol is None or protocol.lost:
            protocol = await self._connect()
        waiter: asyncio.Future[Answer] = loop.create_future()
        protocol.waiter = waiter
        clock = loop.call_later(within_s, protocol.overdue)
        protocol.transport.write(request)
        try:
            return await waiter
        except Dropped:
            self._tally.dropped += 1
            raise
        finally:
            clock.cancel()

    async def _connect(self) -> _Protocol:
        if self._protocol is not None:
            self._tally.reconnects += 1
        try:
            _, protocol = await asyncio.get_running_loop().create_connection(
                _Protocol, "127.0.0.1", self._port
            )
        except OSError as error:
            self._tally.dropped += 1
            raise Dropped(str(error)) from error
        self._tally.connections += 1
        self._protocol = protocol
        return protocol

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.transport.abort()
            self._protocol.lost = True
