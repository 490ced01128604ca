"""A transport with one write to the socket where uvicorn makes two.

uvicorn writes the head and the body of an answer each by itself, and uvloop makes a system call of
each: a tenth of a sample's CPU, and two packets for the client to wake up for. Here what is written
in one turn of the event loop goes out together at its end.
"""

import asyncio
from typing import Any, Final

# Nothing is held beside a piece as large as this, nor more pieces than that, however long the turn.
LARGE_BYTES: Final = 1 << 16
MAX_PIECES: Final = 64


class OneWrite:
    """A transport that gathers its writes; all else is the transport's own."""

    __slots__ = (
        "_held",
        "_loop",
        "_transport",
        "get_extra_info",
        "is_closing",
        "pause_reading",
        "resume_reading",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def __repr__(self) -> str:
        return f"<OneWrite {len(self._held)} pieces held, {self._transport!r}>"

    def write(self, data: bytes) -> None:
        held = self._held
        if not held:
            self._loop.call_soon(self._flush)
        held.append(data)
        if len(data) > LARGE_BYTES or len(held) > MAX_PIECES:
            self._flush()

    def write_now(self, *pieces: bytes) -> None:
        """A whole answer, which waits for nothing that could go out with it."""
        if self._held:
            self._flush()
        if not self.is_closing():
            if len(pieces[-1]) > LARGE_BYTES:
                self._transport.writelines(pieces)
            else:
                self._transport.write(b"".join(pieces))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held = self._held
        if held:
            self._held = []
            if not self.is_closing():
                self._transport.writelines(held)
