"""One keep-alive connection without futures or tasks, and a closed loop over many of them."""

import abc
import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import httptools

OPENING_AT_ONCE: Final = 256

Then = Callable[["Link", int, bytes], None]
"""What is called with the connection, the status and the body of the answer."""


class LoopFault(RuntimeError):
    """An answer that a run cannot be counted with."""


class Link(asyncio.Protocol):
    """One request at a time; `fault` is called where no whole answer came."""

    __slots__ = ("_fault", "_parser", "_parts", "_then", "_transport", "lost", "mark")

    def __init__(self, fault: Callable[[str], None]) -> None:
        self._fault = fault
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._then: Then | None = None
        self._transport: asyncio.Transport | None = None
        self.lost = False
        # The loop's own, for as long as a request is under way.
        self.mark: Any = None

    def ask(self, request: bytes, then: Then) -> None:
        self._then = then
        assert self._transport is not None
        self._transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # An exception of our own callback comes wrapped, with itself as the context.
            self._fault(repr(error.__context__ or error))

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        then, self._then = self._then, None
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if then is not None:
            then(self, self._parser.get_status_code(), body)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if self._then is not None:
            self._fault(f"a connection ended before its answer: {error}")

    def close(self) -> None:
        self._then = None
        if self._transport is not None:
            self._transport.abort()


class Loop(abc.ABC):
    """Keeps its connections busy until so many units are done. One run at a time."""

    def __init__(self, port: int, links: int) -> None:
        self._port = port
        self._wanted = links
        self.links: list[Link] = []
        # Samples that were interrupted and went in again, as the SDK does after a 410.
        self.resubmitted = 0
        self._count = 0
        self._unstarted = 0
        self._undone = 0
        self._ended: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Have all connections stand; those that the server closed while idle are opened anew."""
        self.links = [link for link in self.links if not link.lost]
        missing = self._wanted - len(self.links)
        for first in range(0, missing, OPENING_AT_ONCE):
            many = min(OPENING_AT_ONCE, missing - first)
            self.links += await asyncio.gather(*(self._connect() for _ in range(many)))

    async def run(self, count: int, start_for_s: float) -> int:
        """Until `count` are done, or those that were started in so long; how many. On a machine
        that is too busy a run has an end too. Raises LoopFault."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._unstarted = self._undone = self._count = count
        clock = loop.call_later(start_for_s, self._start_no_more)
        try:
            self._begin()
            await self._ended
        finally:
            clock.cancel()
        return self._count

    def _start_no_more(self) -> None:
        self._count -= self._unstarted
        self._undone -= self._unstarted
        self._unstarted = 0

    @abc.abstractmethod
    def _begin(self) -> None:
        """Start the first ones; each that is done starts the next."""

    async def _connect(self) -> Link:
        _, link = await asyncio.get_running_loop().create_connection(
            lambda: Link(self._fault), "127.0.0.1", self._port
        )
        return link

    def _done(self) -> bool:
        """Count one; whether another one is to be started."""
        self._undone -= 1
        if not self._undone:
            self._end()
        return self._unstarted > 0

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _fault(self, text: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(LoopFault(text))


class Fixed(NamedTuple):
    """A prepared request and the size of its answer in bytes, None where it may vary."""

    request: bytes
    answer_bytes: int | None


class FixedLoop(Loop):
    """Each connection sends the same requests in turn; the unit is one answer."""

    def __init__(self, port: int, links: int, requests: Sequence[Fixed]) -> None:
        super().__init__(port, links)
        self._requests = requests

    def _start_no_more(self) -> None:
        self._count -= self._unstarted
        self._undone -= self._unstarted
        self._unstarted = 0

    def _begin(self) -> None:
        for link in self.links[: self._unstarted]:
            link.mark = 0
            self._next(link)

    def _next(self, link: Link) -> None:
        self._unstarted -= 1
        link.ask(self._requests[link.mark].request, self._answered)

    def _answered(self, link: Link, status: int, body: bytes) -> None:
        expected = self._requests[link.mark].answer_bytes
        if status != 200 or (expected is not None and len(body) != expected):
            self._fault(f"{status} with {len(body)} bytes, must be 200 with {expected}")
            return
        link.mark = (link.mark + 1) % len(self._requests)
        if self._done():
            self._next(link)
