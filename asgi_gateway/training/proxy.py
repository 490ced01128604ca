"""A streaming reverse proxy to the trainer, as an ASGI application.

Nothing is buffered, decoded or followed: bodies go both ways in pieces, each read only when the
last one was taken, and status, headers and encodings arrive as the trainer gave them. What breaks
on the way is told from what was answered: see `Proxy.forward`.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

import aiohttp
import msgspec

from asgi_gateway.asgi import JSON, Receive, Reply, Scope, Send, error_reply, send_reply
from asgi_gateway.capped import read_capped
from asgi_gateway.errors import (
    GatewayError,
    Interrupted,
    Malformed,
    Unavailable,
    Unreadable,
    Unready,
)
from asgi_gateway.training.connection import BROKEN, Exchange, named, new_session
from asgi_gateway.training.headers import request_headers
from asgi_gateway.training.incoming import Incoming
from asgi_gateway.training.prefix import Prefix
from asgi_gateway.training.relay import relay

# A trainer under a server's defaults closes an idle connection after 5 s, and a POST that meets a
# closing one is lost. aiohttp repeats idempotent methods whose body it still has, and only those.
KEEPALIVE_S: Final = 4.0
CONNECT_TIMEOUT_S: Final = 10.0
# Silence. SkyRL holds a poll for 300 s; nothing it does between two bytes takes longer.
READ_TIMEOUT_S: Final = 600.0
PATIENCE_STEP_S: Final = 1.0
ASK_TIMEOUT_S: Final = 30.0
ASK_CAP_BYTES: Final = 16 << 20
TRY_AGAIN: Final = Reply(408, b'{"type":"try_again","queue_state":"active"}')


class Answer(NamedTuple):
    """A whole answer to a call of the gateway itself; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Proxy:
    """Forwards every HTTP request to the trainer at `url`; opened and closed by the app."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        self.prefix = Prefix(url)
        self.active = 0
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout_s, sock_read=read_timeout_s
        )
        self._keepalive_s = keepalive_s
        self._session: aiohttp.ClientSession | None = None
        self._stopping: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Proxy {self.prefix.base} active={self.active} open={self._session is not None}>"

    def open(self) -> None:
        """Inside the event loop; does nothing where it is open already."""
        if self._session is None:
            self._session = new_session(self._timeout, self._keepalive_s)
            self._stopping = asyncio.get_running_loop().create_future()

    def stop_holding(self) -> None:
        """The process is stopping: answer the polls that the trainer holds, and hold none more."""
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)

    async def close(self) -> None:
        """Ends what is under way."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http":
            await self.forward(scope, receive, send)
        else:
            raise ValueError(f"the proxy serves no {scope['type']!r} scope")

    async def forward(
        self, scope: Scope, receive: Receive, send: Send, *, patience_s: float = 0.0
    ) -> None:
        """Answer one request as the trainer does.

        Cannot connect: 503. The trainer hangs up before it answers: 502. It is silent for too
        long: 504. The client goes away: the trainer's connection is closed too.

        Args:
            patience_s: above 0 for a poll, which the SDK repeats at once after any 5xx, hundreds of
                times a second: how long to try connecting again before 503. Nothing was sent, so
                nothing runs twice. `stop_holding` ends it.

        Raises:
            Truncated: the trainer's answer broke after it had begun.
        """
        incoming = Incoming(scope, receive)
        if not await incoming.begin():
            return
        exchange = Exchange()
        work = asyncio.create_task(self._answer(scope, incoming, send, exchange, patience_s))
        exchange.task = work
        watch = asyncio.create_task(incoming.hung_up())
        ends: list[asyncio.Future[None]] = [work, watch]
        let_go = False
        self.active += 1
        try:
            if patience_s and self._stopping is not None:
                await asyncio.wait([*ends, self._stopping], return_when=asyncio.FIRST_COMPLETED)
                let_go = not (work.done() or watch.done() or exchange.answering)
            if not let_go:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.active -= 1
            watch.cancel()
            if not work.done():
                exchange.abort()
            await asyncio.wait((work, watch))
        if not watch.cancelled():
            watch.exception()
        if not work.cancelled():
            work.result()
        if let_go:
            await send_reply(send, TRY_AGAIN, close=True)

    async def request_json(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> Answer:
        """A call of the gateway itself; `body` is sent as JSON, None as no body.

        Raises:
            Unavailable: nothing was sent, so it may be sent again.
            Interrupted: sent, and no whole answer came within `timeout_s`.
            Unreadable: an answer of more than 16 MiB.
        """
        exchange = Exchange()
        task = asyncio.create_task(self._ask(method, path, body, headers, timeout_s, exchange))
        exchange.task = task
        try:
            await asyncio.wait((task,), timeout=timeout_s)
        finally:
            if not task.done():
                task.add_done_callback(_forget)
                unsent = exchange.connecting
                exchange.abort()
        if task.done():
            return task.result()
        failure = Unavailable if unsent else Interrupted
        raise failure(f"the trainer did not answer: TimeoutError, nothing whole in {timeout_s:g} s")

    # --- one request -----------------------------------------------------------------------------

    async def _answer(
        self,
        scope: Scope,
        incoming: Incoming,
        send: Send,
        exchange: Exchange,
        patience_s: float,
    ) -> None:
        try:
            response = await self._reach(scope, incoming, exchange, patience_s)
        except (Malformed, Unready, *BROKEN) as error:
            if patience_s and isinstance(error, BROKEN):
                await asyncio.sleep(PATIENCE_STEP_S)
            if not (incoming.gone or exchange.aborted):
                await send_reply(send, _refusal(error))
            return
        exchange.answering = True
        try:
            await relay(scope["method"], response, send)
        finally:
            response.close()  # without effect where it was read to its end

    async def _reach(
        self, scope: Scope, incoming: Incoming, exchange: Exchange, patience_s: float
    ) -> aiohttp.ClientResponse:
        """The head of the trainer's answer.

        Raises:
            Malformed: the target is no path.
            Unready: no connection within `patience_s`.
        """
        url = self.prefix.target(scope)
        headers = request_headers(scope)
        whole = incoming.whole
        if whole is None and incoming.length is not None:
            headers.append(("content-length", str(incoming.length)))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while True:
            if self._session is None:
                raise Unready("the gateway is not open")
            try:
                return await self._session.request(
                    scope["method"],
                    url,
                    headers=headers,
                    data=incoming if whole is None else whole or None,
                    allow_redirects=False,
                    trace_request_ctx=exchange,
                )
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                why = f"cannot connect to the trainer: {named(error)}"
            exchange.connecting = False
            if exchange.aborted or loop.time() >= deadline:
                raise Unready(why)
            await asyncio.sleep(PATIENCE_STEP_S)

    async def _ask(
        self,
        method: str,
        path: str,
        body: object,
        headers: Mapping[str, str] | None,
        timeout_s: float,
        exchange: Exchange,
    ) -> Answer:
        if self._session is None:
            raise Unavailable("the gateway is not open")
        sent = {"accept": "application/json", "accept-encoding": "identity", **(headers or {})}
        if body is not None:
            sent.setdefault("content-type", JSON.decode())
        try:
            async with self._session.request(
                method,
                self.prefix.join(path),
                headers=sent,
                data=None if body is None else msgspec.json.encode(body),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._timeout.sock_connect, sock_read=timeout_s
                ),
                trace_request_ctx=exchange,
            ) as response:
                answer = await read_capped(response, ASK_CAP_BYTES, _too_large)
                told = {name.lower(): value for name, value in response.headers.items()}
                return Answer(response.status, told, answer)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unavailable(f"cannot connect to the trainer: {named(error)}") from error
        except BROKEN as error:
            raise Interrupted(f"the trainer did not answer: {named(error)}") from error


def _forget(task: asyncio.Task[Answer]) -> None:
    """Nobody waits for how it ends; asyncio would complain."""
    if not task.cancelled():
        task.exception()


def _too_large() -> Exception:
    return Unreadable(f"the trainer answered more than {ASK_CAP_BYTES} bytes")


def _refusal(error: Exception) -> Reply:
    if isinstance(error, GatewayError):
        return error_reply(error)
    # It was sent: whether it ran is not known, so nothing here repeats it.
    status = 504 if isinstance(error, aiohttp.SocketTimeoutError) else 502
    detail = f"the trainer did not answer: {named(error)}"
    return Reply(status, msgspec.json.encode({"detail": detail}))
