"""One JSON line per HTTP request, for operators.

A line never carries headers, bodies or queries; of a path nothing that looks like a key.
"""

import re
from collections.abc import Awaitable
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from asgi_gateway.asgi import REPLY, Message, Reply, Scope, Send
from asgi_gateway.clock import Clock
from asgi_gateway.peer import telling
from asgi_gateway.settings import LogSettings, Settings
from asgi_gateway.textline import one_line, without_keys
from asgi_gateway.tracing.context import TRACEPARENT, carried
from asgi_gateway.writer import Line, Writer

MAX_PATH_CHARACTERS: Final = 300
MAX_NAME_CHARACTERS: Final = 64
_ID: Final = re.compile(rb"[A-Za-z0-9._:=/+-]{1,128}\Z")


class AccessLine(Line, gc=False, omit_defaults=True):
    """What is written of a request; fields without a value are left out. `time` is of its end, in
    seconds of the epoch until the line is written. `status` 0: the client left before an answer."""

    time: Any
    client: str
    method: str
    path: str
    status: int
    response_bytes: int
    seconds: float | None = None
    client_request_id: str | None = None
    trace_id: str | None = None

    def prepare(self) -> None:
        self.time = datetime.fromtimestamp(self.time, UTC)
        self.client = one_line(self.client, MAX_NAME_CHARACTERS)
        self.method = one_line(self.method, MAX_NAME_CHARACTERS)
        # First the keys: one that is cut off is no less a part of a key.
        self.path = one_line(without_keys(self.path), MAX_PATH_CHARACTERS)


class Heard:
    """A `send` that remembers what went through it. Calling it makes no coroutine of its own."""

    __slots__ = ("_at_once", "_send", "_telling", "began_at", "nbytes", "scope", "status")

    def __init__(self, scope: Scope, send: Send, began_at: float) -> None:
        self.scope = scope
        self._send = send
        self._telling = telling(send)
        extensions: Any = scope.get("extensions")
        self._at_once: Any = extensions.get(REPLY) if extensions else None
        if self._at_once is not None:
            scope["extensions"] = {**extensions, REPLY: self._reply}
        self.began_at = began_at
        self.status = 0
        self.nbytes = 0

    def __call__(self, message: Message) -> Awaitable[None]:
        if self._left():
            pass  # the server drops it
        elif message["type"] == "http.response.body":
            self.nbytes += len(message.get("body", b""))
        elif message["type"] == "http.response.start":
            self.status = message["status"]
        return self._send(message)

    def _reply(self, reply: Reply) -> bool:
        """In the place of the server's, for answers that do not come through `send`."""
        done: bool = self._at_once(reply)
        if done and not self._left():
            self.status, self.nbytes = reply.status, len(reply.body)
        return done

    def _left(self) -> bool:
        return self._telling is not None and self._telling.disconnected


class AccessLog:
    """Which requests have a line, and what it says; the event loop's."""

    def __init__(self, settings: LogSettings, clock: Clock, writer: Writer[Any]) -> None:
        self.writer = writer
        self._clock = clock
        self._share = settings.access_share
        # One in so many would always be the same: a client submits and polls by turns.
        self._random = Random().random

    def __repr__(self) -> str:
        return f"<AccessLog {self.writer!r}>"

    def reconfigure(self, settings: Settings) -> None:
        """How many lines are written from now on."""
        self._share = settings.log.access_share

    def chosen(self) -> bool:
        """Whether a request that begins is of the share."""
        return self._random() < self._share

    def heard(self, scope: Scope, send: Send) -> Heard:
        """One that was chosen begins."""
        return Heard(scope, send, self._clock.now())

    def ended(self, heard: Heard) -> None:
        """And it is over."""
        seconds = round(self._clock.now() - heard.began_at, 6)
        self._put(heard.scope, heard.status, heard.nbytes, seconds)

    def refused(self, scope: Scope, status: int, nbytes: int) -> None:
        """One that was not chosen is answered with an error."""
        self._put(scope, status, nbytes, None)

    def _put(self, scope: Scope, status: int, nbytes: int, seconds: float | None) -> None:
        client = scope.get("client")
        line = AccessLine(
            self._clock.wall_time(),
            client[0] if client else "",
            scope["method"],
            scope["path"],
            status,
            nbytes,
            seconds,
        )
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                if _ID.match(value) is not None:
                    line.client_request_id = value.decode("ascii")
            elif name == TRACEPARENT:
                trace = carried(scope["headers"])
                line.trace_id = trace.trace_id if trace is not None else None
        self.writer.put(line)
