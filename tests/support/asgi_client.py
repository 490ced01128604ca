"""Drives an ASGI application without a server: scope, receive and send by hand.

Behaves like uvicorn where it matters: the body comes in one message, and `receive()` after it waits
until the client hangs up.
"""

import asyncio
from typing import Any

import msgspec

from asgi_gateway.asgi import App, Message


class Response(msgspec.Struct):
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Connection:
    """One request on its way; `hang_up` is the client going away."""

    def __init__(
        self, app: App, method: str, path: str, body: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self._gone = asyncio.Event()
        self._messages: list[Message] = [{"type": "http.request", "body": body}]
        self._sent: list[Message] = []
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "root_path": "",
        }
        self._task = asyncio.ensure_future(self._run(app, scope))

    async def _run(self, app: App, scope: dict[str, Any]) -> None:
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._sent.append(message)

    def hang_up(self) -> None:
        self._gone.set()

    @property
    def answered(self) -> bool:
        return self._task.done()

    async def response(self) -> Response:
        await self._task
        start, *rest = self._sent
        return Response(
            start["status"],
            {name.lower(): value for name, value in start["headers"]},
            b"".join(message.get("body", b"") for message in rest),
        )


class AsgiClient:
    """A client of one application."""

    def __init__(self, app: App) -> None:
        self._app = app

    def start(
        self,
        method: str,
        path: str,
        body: bytes | object = b"",
        headers: dict[str, str] | None = None,
    ) -> Connection:
        """Begin a request; anything that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        pairs = [(b"content-length", b"%d" % len(data))]
        pairs += [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        return Connection(self._app, method, path, data, pairs)

    async def post(
        self, path: str, body: bytes | object = b"{}", headers: dict[str, str] | None = None
    ) -> Response:
        return await self.start("POST", path, body, headers).response()

    async def get(self, path: str) -> Response:
        return await self.start("GET", path).response()


async def turns(count: int = 10) -> None:
    """Let everything that is ready run; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)
