"""One request as it comes in: its body, read only as fast as it is taken, and the client itself."""

import asyncio
from typing import Final

from asgi_gateway.asgi import ClientGone, Message, Receive, Scope
from asgi_gateway.training.headers import declared_length

# aiohttp warns about larger bodies in one piece, and would copy them whole.
_PIECE_BYTES: Final = 256 << 10
# A server that keeps handing out messages which mean nothing to us is taken as "cannot tell".
_MAX_IDLE_MESSAGES: Final = 8


class Incoming:
    """An async iterator over the body; `hung_up` returns when the client goes away.

    There is one `receive()` at a time: the body's while there is body left, after it the watcher's.
    An iterator by hand, because an async generator that is dropped half-way is closed by the event
    loop some time later, when the connection below it has gone.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._declared = declared_length(scope)
        self._piece = b""
        self._offset = 0
        self._taken = 0
        self._last = False
        self._read = asyncio.Event()
        self.gone = False

    async def begin(self) -> bool:
        """Read the first message; False when the client has gone already."""
        self._keep(await self._receive())
        return not self.gone

    @property
    def whole(self) -> bytes | None:
        """The body where it came at once and is small: it can be sent again if need be."""
        return self._piece if self._last and len(self._piece) <= _PIECE_BYTES else None

    @property
    def length(self) -> int | None:
        """How long the body is, None where nobody knows yet."""
        return len(self._piece) if self._last and self._declared is None else self._declared

    def __aiter__(self) -> "Incoming":
        return self

    async def __anext__(self) -> bytes:
        while self._offset >= len(self._piece):
            if self._last:
                self._check_length()
                raise StopAsyncIteration
            self._keep(await self._receive())
            if self.gone:
                raise ClientGone
        piece = self._piece[self._offset : self._offset + _PIECE_BYTES]
        self._offset += len(piece)
        self._taken += len(piece)
        return piece

    async def hung_up(self) -> None:
        """Until the client goes away; for ever where the server does not tell."""
        await self._read.wait()
        for _ in range(_MAX_IDLE_MESSAGES):
            if self.gone or (await self._receive())["type"] == "http.disconnect":
                self.gone = True
                return
        await asyncio.get_running_loop().create_future()

    def _keep(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            self.gone = True
        else:
            self._piece, self._offset = message.get("body", b""), 0
            self._last = not message.get("more_body", False)
        if self.gone or self._last:
            self._read.set()

    def _check_length(self) -> None:
        """A body that ends early must break the request: the trainer would wait for the rest."""
        if self._declared is not None and self._taken < self._declared:
            self.gone = True
            raise ClientGone
