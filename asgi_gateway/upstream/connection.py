"""One connection to an upstream: HTTP/1.1, one request at a time, parsed by httptools.

No task and no future: the pool is told by calls from within the socket's callbacks. Everything that
the upstream sends without having been asked ends the connection, so that no answer can reach the
request after the one it belongs to.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

from asgi_gateway.errors import Interrupted, StaleConnection, UpstreamError
from asgi_gateway.upstream.exchange import Answer, Exchange, too_large
from asgi_gateway.upstream.large import LARGE_BYTES, LargeBodies, Permit
from asgi_gateway.upstream.origin import Origin

# A reused connection that dies this soon after our write was closed by the upstream while idle.
STALE_WITHIN_S: Final = 1.0
# Above this, a second write costs less than copying head and body into one.
ONE_WRITE_BYTES: Final = 1 << 16
HEAD_CAP_BYTES: Final = 1 << 16


class Owner(Protocol):
    """What a connection needs of its pool."""

    loop: asyncio.AbstractEventLoop
    large: LargeBodies
    sweeps: int
    """Counts up about twice a second while a request is under way, less often in a late loop."""

    def released(self, connection: "Connection", *, reusable: bool) -> None:
        """Its request is over; a reusable one may carry the next."""

    def lost(self, connection: "Connection") -> None:
        """It is closed."""


class Connection(asyncio.Protocol):
    """Times are of the event loop's clock: `started_at` of the request on it, `heard_at` of the
    last byte in either direction. `closing` is the socket's: whether it is being closed. `retired`:
    it leads to an `address` that the upstream's name has no more."""

    __slots__ = (
        "_again",
        "_body",
        "_cap_bytes",
        "_exchange",
        "_head",
        "_owner",
        "_parser",
        "_permit",
        "_room",
        "_started_sweep",
        "_status",
        "_transport",
        "_used",
        "address",
        "closing",
        "heard_at",
        "origin",
        "retired",
        "started_at",
    )

    def __init__(self, owner: Owner, origin: Origin, address: str = "") -> None:
        self.origin = origin
        self.address = address
        self.retired = False
        self._owner = owner
        self._transport: asyncio.Transport
        self.closing: Callable[[], bool]
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._used = False
        self._again = False
        self._permit: Permit | None = None
        # Of a large answer: its bound, and what of that is left.
        self._cap_bytes = self._room = 0
        # Of a whole answer, else 0.
        self._status = 0
        self._started_sweep = 0
        self._body: list[bytes] = []
        # What came before the first byte of a body, kept while an answer is not whole.
        self._head = b""
        self.started_at = self.heard_at = owner.loop.time()

    def __repr__(self) -> str:
        return f"<Connection {'idle' if self._exchange is None else 'busy'}, used {self._used}>"

    def start(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Send a request; the connection must be idle."""
        self._exchange = exchange
        exchange.work = self
        self.started_at = self.heard_at = self._owner.loop.time()
        self._started_sweep = self._owner.sweeps
        if len(body) <= ONE_WRITE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def drop(self) -> None:
        """Close at once; whoever waits for an answer is not told."""
        self._exchange = self._permit = None
        self._transport.abort()

    def fail(self, error: UpstreamError) -> None:
        """End the request with an error, and the connection with it."""
        exchange = self._exchange
        self.drop()
        self._owner.released(self, reusable=False)
        if exchange is not None:
            exchange.work = None
            exchange.failed(error)

    # --- from the socket --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.closing = transport.is_closing

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self._transport.abort()  # nobody asked
            return
        self.heard_at = self._owner.loop.time()
        in_head = not self._body
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._status:
                self.fail(Interrupted(f"the upstream's answer is not HTTP: {error}"))
                return
            self._again = True  # what follows a whole answer
        if self._status:
            self._answered(exchange, data)
            return
        if in_head:
            self._begun(exchange, data)
        if self._permit is None:
            if self._exchange is not None:
                self._grown(exchange)
        else:
            # With what frames it, so that a body in many small chunks has its bound too.
            self._room -= len(data)
            if self._room < 0:
                self.fail(too_large(self._cap_bytes))

    def _grown(self, exchange: Exchange) -> None:
        """Wait with the rest of a large answer while enough others come in."""
        nbytes = sum(map(len, self._body))
        if nbytes >= LARGE_BYTES:
            self._cap_bytes = exchange.answer_cap()
            self._room = self._cap_bytes - nbytes
            if self._room < 0:
                self.fail(too_large(self._cap_bytes))
                return
            self._permit = self._owner.large.permit(self)
            if self._permit is None:
                self._transport.pause_reading()

    def go_on(self, permit: Permit) -> None:
        """Read the rest."""
        self._permit = permit
        self.heard_at = self._owner.loop.time()
        self._transport.resume_reading()

    def eof_received(self) -> None:
        """Close; connection_lost follows."""

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.lost(self)
        if self._exchange is None:
            return
        status = self._parser.get_status_code() if self._body else 0
        if error is None and status >= 200 and not _framed(self._head):
            self._status, self._again = status, True  # the end of the connection ends the body
            self._answered(self._exchange, b"")
            return
        what = f"{type(error).__name__}: {error}" if error is not None else "it was closed"
        silent = not self._head
        # A loop that is late sees late what happened at once: then its own beat tells.
        at_once = (
            self._owner.loop.time() - self.started_at < STALE_WITHIN_S
            or self._owner.sweeps - self._started_sweep <= 1
        )
        if silent and self._used and at_once:
            self.fail(StaleConnection(f"an idle upstream connection was closed: {what}"))
        else:
            self.fail(Interrupted(f"the upstream connection broke: {what}"))

    def _begun(self, exchange: Exchange, data: bytes) -> None:
        """A part of an answer came, and all before it held no byte of the body."""
        self._head += data
        if self._body:
            if 200 <= self._parser.get_status_code() < 300:
                exchange.answering()
        elif len(self._head) > HEAD_CAP_BYTES:
            self.fail(Interrupted(f"the upstream's headers have over {HEAD_CAP_BYTES} bytes"))

    def _answered(self, exchange: Exchange, data: bytes) -> None:
        status, pieces = self._status, self._body or [b""]
        retry_after = _retry_after(self._head + data) if status >= 300 else None
        reusable = not self._again
        self._exchange, exchange.work = None, None
        self._used, self._status, self._again = True, 0, False
        self._body, self._head = [], b""
        permit, self._permit = self._permit, None
        if not reusable:
            self._transport.abort()
        self._owner.released(self, reusable=reusable)
        exchange.answered(Answer(status, pieces, retry_after, permit))

    # --- from the parser --------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._again = self._status > 0

    def on_body(self, body: bytes) -> None:
        if not self._status:
            self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._status:
            return  # an interim answer, which the real one follows; or what nobody asked for
        self._status = status
        self._again = not self._parser.should_keep_alive()


def _framed(head: bytes) -> bool:
    """Whether headers say where the body ends."""
    names = _last(head).lower()
    return b"\r\ncontent-length:" in names or b"\r\ntransfer-encoding:" in names


def _last(head: bytes) -> bytes:
    """The head of an answer, without interim ones before it and what follows."""
    first, _, rest = head.partition(b"\r\n\r\n")
    while rest and first[8:10] == b" 1":
        first, _, rest = rest.partition(b"\r\n\r\n")
    return first


def _retry_after(head: bytes) -> str | None:
    for line in _last(head).split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"retry-after":
            return value.strip().decode("latin-1")
    return None
