"""One request: who calls, its body, its handler, and what becomes of the errors."""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from asgi_gateway.access.door import Door
from asgi_gateway.accesslog import AccessLog, Heard
from asgi_gateway.asgi import (
    REPLY,
    App,
    Call,
    ClientGone,
    Receive,
    Reply,
    Scope,
    Send,
    error_reply,
    read_body,
    replayed,
    send_reply,
    unless_unknown,
)
from asgi_gateway.caller import DEFAULT
from asgi_gateway.delivery import Delivery
from asgi_gateway.errors import (
    Foreign,
    ForeignId,
    GatewayError,
    NotFound,
    Unauthorized,
    WrongMethod,
)
from asgi_gateway.memory_watch import MemoryWatch
from asgi_gateway.metrics import Metrics
from asgi_gateway.route import Match
from asgi_gateway.settings import Settings
from asgi_gateway.training.proxy import Proxy
from asgi_gateway.training.trainer import Trainer

log = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]

_INTERNAL_ERROR: Final = Reply(500, b'{"detail":"an internal error of the gateway"}')


class Answering:
    def __init__(
        self,
        *,
        door: Door | None,
        delivery: Delivery,
        behind: App | None,
        trainer: Trainer | None,
        metrics: Metrics,
        memory: MemoryWatch,
        hold_s: float,
        begin: Callable[[], Awaitable[None]],
    ) -> None:
        """begin: opens the gateway where that was not done (`is_open`)."""
        self._door = door
        self._delivery = delivery
        self._behind = behind
        self._trainer = trainer
        self._metrics = metrics
        self._memory = memory
        self._hold_s = hold_s
        self._begin = begin
        self.is_open = False

    def reconfigure(self, settings: Settings) -> None:
        self._hold_s = settings.poll.hold_s

    async def answer(self, match: Match, scope: Scope, receive: Receive, send: Send) -> None:
        route, body, caller = match.route, b"", DEFAULT
        method, cap_bytes = route.method, route.body_cap_bytes
        try:
            if not self.is_open:
                await self._begin()  # a host that runs no lifespan for the apps it mounts
            if self._door is not None:
                caller = self._door.enter(scope, route.access)
            if method is not None and scope["method"] != method:
                raise WrongMethod(f"use {method}")
            if self._memory.closed and scope["path"].endswith("/asample"):
                self._memory.refuse()
            if cap_bytes is not None:
                body = await read_body(scope, receive, cap_bytes)
                self._memory.came(len(body))
            reply = await route.handler(Call(scope, receive, body, match.tail, caller))
        except ClientGone:
            return
        except GatewayError as error:
            if isinstance(error, Foreign) and self._behind is not None:
                if isinstance(error, ForeignId) and self._door is not None:
                    send = unless_unknown(send, error_reply(error))
                if self._trainer is not None:
                    send = self._trainer.overheard(body, send, caller.name)
                if cap_bytes is not None:
                    receive = replayed(body, receive)
                await self._pass_on(scope, receive, send)
                return
            if isinstance(error, Unauthorized) and self._door is not None:
                await self._door.penalty.serve(scope)
            reply = error_reply(error)
            if isinstance(error, WrongMethod) and method is not None:
                allow = ((b"allow", method.encode()),)
                reply = Reply(reply.status, reply.body, headers=allow)
            self._refused(scope, send, reply)
        except Exception:
            log.exception("bug while answering %.300r", scope["path"])
            self._metrics.bugs += 1
            reply = _INTERNAL_ERROR
            self._refused(scope, send, reply)
        extensions = scope.get("extensions")
        at_once = extensions.get(REPLY) if extensions else None
        if at_once is None or self._delivery.closing or not at_once(reply):
            await send_reply(send, reply, close=self._delivery.closing)

    async def nowhere(self, scope: Scope, send: Send) -> None:
        """Answer a path that is nobody's."""
        reply = error_reply(NotFound(f"no route {scope['path']!r:.200}"))
        self._refused(scope, send, reply)
        await send_reply(send, reply)

    def _refused(self, scope: Scope, send: Send, reply: Reply) -> None:
        """An error of ours goes out instead of an answer."""

    async def pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a path that is not ours."""
        await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let what is behind us answer. A poll waits for a trainer that is away: the SDK repeats
        one at once after a 5xx."""
        assert self._behind is not None
        if isinstance(self._behind, Proxy):
            if not self.is_open:
                try:
                    await self._begin()
                except GatewayError as error:  # it was closed
                    await send_reply(send, error_reply(error), close=True)
                    return
            is_poll = scope["path"].endswith("/retrieve_future")
            patience_s = self._hold_s if is_poll else 0.0
            await self._behind.forward(scope, receive, send, patience_s=patience_s)
        else:
            await self._behind(scope, receive, send)


class LoggedAnswering(Answering):
    """Answering, and lines about it. Takes the place of the other where there is a log, so that
    without one nothing is done; and what is not of the share costs next to nothing."""

    def __init__(self, log: AccessLog, **parts: Any) -> None:
        super().__init__(**parts)
        self._log = log

    def answer(self, match: Match, scope: Scope, receive: Receive, send: Send) -> Work:
        if not self._log.chosen():
            return super().answer(match, scope, receive, send)
        heard = self._log.heard(scope, send)
        return self._written(heard, super().answer(match, scope, receive, heard))

    def pass_on(self, scope: Scope, receive: Receive, send: Send) -> Work:
        if not self._log.chosen():
            return super().pass_on(scope, receive, send)
        heard = self._log.heard(scope, send)
        return self._written(heard, super().pass_on(scope, receive, heard))

    async def _written(self, heard: Heard, work: Work) -> None:
        try:
            await work
        finally:
            self._log.ended(heard)

    def _refused(self, scope: Scope, send: Send, reply: Reply) -> None:
        if not isinstance(send, Heard):
            self._log.refused(scope, reply.status, len(reply.body))


def answering(log: AccessLog | None, **parts: Any) -> Answering:
    """Parts as of `Answering`."""
    return Answering(**parts) if log is None else LoggedAnswering(log, **parts)
