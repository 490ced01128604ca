"""Every route but the completions: what the stand-in is, what it has counted, and its barrier."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Final

import msgspec

from loadgen.connection import Connection, Request
from loadgen.counts import Counted, Hit, added, exposition, merged, merged_faulted, merged_hits
from loadgen.errors import error_json
from loadgen.listing import models_json
from loadgen.peers import Command, Peers
from loadgen.settings import Settings

VERSION: Final = "0.32.0"
"""The vLLM whose answers are imitated."""

Handler = Callable[[Connection, Request], None]
_counted: Final = msgspec.json.Decoder(Counted)
_numbers: Final = msgspec.json.Decoder(dict[str, int])
_hits: Final = msgspec.json.Decoder(dict[str, Hit])
_faults: Final = msgspec.json.Decoder(dict[str, list[str]])


class Control:
    """Answers for this process, or for all of them where there are peers."""

    def __init__(self, settings: Settings, command: Command) -> None:
        """command: does one of `counts`, `hits`, `faulted`, `sessions`, `release`, `hold` here."""
        self._settings = settings
        self._command = command
        self._started_at = int(time.time())
        self._asking: set[asyncio.Task[None]] = set()
        self.peers: Peers | None = None
        self.routes: dict[bytes, tuple[bytes, Handler]] = {
            b"/v1/models": (b"GET", self._models),
            b"/health": (b"GET", self._health),
            b"/version": (b"GET", self._version),
            b"/metrics": (b"GET", self._metrics),
            b"/counts": (b"GET", self._counts),
            b"/requests": (b"GET", self._requests),
            b"/hits": (b"GET", self._times),
            b"/faulted": (b"GET", self._faulted),
            b"/sessions": (b"GET", self._sessions),
        }
        if settings.barrier is not None:
            self.routes[b"/release"] = (b"POST", self._barrier)
            self.routes[b"/hold"] = (b"POST", self._barrier)

    def tell(self, command: str) -> None:
        """Have every process do this, without waiting for it."""
        if self.peers is None:
            self._command(command)
        else:
            self._begin(self._tell(self.peers, command))

    def _ask(
        self, connection: Connection, command: str, then: Callable[[list[bytes]], None]
    ) -> None:
        if self.peers is None:
            then([self._command(command)])
        else:
            self._begin(self._answer(self.peers, connection, command, then))

    def _begin(self, asking: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(asking)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _tell(self, peers: Peers, command: str) -> None:
        with contextlib.suppress(OSError, TimeoutError):  # of a process that is about to end
            await peers.ask_all(command)

    async def _answer(
        self,
        peers: Peers,
        connection: Connection,
        command: str,
        then: Callable[[list[bytes]], None],
    ) -> None:
        try:
            then(await peers.ask_all(command))
        except (OSError, TimeoutError) as error:
            message = f"a process of the stand-in does not answer: {error!r}"
            connection.respond(500, error_json(message, status=500, kind="InternalServerError"))
        connection.advance()

    def _models(self, connection: Connection, _: Request) -> None:
        connection.respond(200, models_json(self._settings, created=self._started_at))

    def _health(self, connection: Connection, _: Request) -> None:
        connection.respond(200, b"", "")

    def _version(self, connection: Connection, _: Request) -> None:
        connection.respond(200, msgspec.json.encode({"version": VERSION}))

    def _metrics(self, connection: Connection, _: Request) -> None:
        def respond(parts: list[bytes]) -> None:
            counted = merged(list(map(_counted.decode, parts)))
            text = exposition(counted, self._settings.models[0])
            connection.respond(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

        self._ask(connection, "counts", respond)

    def _counts(self, connection: Connection, _: Request) -> None:
        def respond(parts: list[bytes]) -> None:
            counted = merged(list(map(_counted.decode, parts)))
            connection.respond(200, msgspec.json.encode(counted))

        self._ask(connection, "counts", respond)

    def _requests(self, connection: Connection, _: Request) -> None:
        def respond(parts: list[bytes]) -> None:
            counts = {name: hit[0] for name, hit in _merged_hits(parts).items()}
            connection.respond(200, msgspec.json.encode(counts))

        self._ask(connection, "hits", respond)

    def _times(self, connection: Connection, _: Request) -> None:
        def respond(parts: list[bytes]) -> None:
            connection.respond(200, msgspec.json.encode(_merged_hits(parts)))

        self._ask(connection, "hits", respond)

    def _faulted(self, connection: Connection, _: Request) -> None:
        def respond(parts: list[bytes]) -> None:
            faulted = merged_faulted(list(map(_faults.decode, parts)))
            connection.respond(200, msgspec.json.encode(faulted))

        self._ask(connection, "faulted", respond)

    def _sessions(self, connection: Connection, _: Request) -> None:
        def respond(parts: list[bytes]) -> None:
            connection.respond(200, msgspec.json.encode(added(list(map(_numbers.decode, parts)))))

        self._ask(connection, "sessions", respond)

    def _barrier(self, connection: Connection, request: Request) -> None:
        self._ask(connection, request.path[1:].decode(), lambda _: connection.respond(200, b"{}"))


def _merged_hits(parts: list[bytes]) -> dict[str, Hit]:
    return merged_hits(list(map(_hits.decode, parts)))
