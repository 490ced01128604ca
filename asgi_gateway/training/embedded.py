"""Calls to an inner ASGI application that is the trainer: the same as over HTTP, in process."""

import asyncio
import logging
from urllib.parse import quote

import msgspec

from asgi_gateway.asgi import JSON, App, Message, Scope, path_below_root
from asgi_gateway.training.proxy import Answer
from asgi_gateway.training.trainer import headers_of

log = logging.getLogger(__name__)


class Embedded:
    """Asks an ASGI application in a client's name; its routes see an ordinary request."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def ask(self, method: str, path: str, body: object, scope: Scope) -> Answer:
        """The application's whole answer to another request by the client of `scope`.

        An application that fails has answered 500, as a server would say for it.
        """
        data = b"" if body is None else msgspec.json.encode(body)
        answering = _Answering(data)
        try:
            await self._app(
                _scope(scope, method, path, len(data)), answering.receive, answering.send
            )
        except Exception:
            log.exception("the inner application failed at %s %s", method, path)
            return Answer(500, {"content-type": "text/plain"}, b"Internal Server Error")
        return answering.answer()


def _scope(scope: Scope, method: str, path: str, length: int) -> Scope:
    """The client's scope with another request in it: its `state`, `app` and mount point stay."""
    mounted = scope["path"].removesuffix(path_below_root(scope))
    host = [pair for pair in scope["headers"] if pair[0] == b"host"]
    headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers_of(scope).items()]
    if length and not any(name == b"content-type" for name, _ in headers):
        headers.append((b"content-type", JSON))
    return {
        **scope,
        "method": method,
        "path": mounted + path,
        "raw_path": quote(mounted + path).encode(),
        "query_string": b"",
        "headers": [*host, *headers, (b"content-length", b"%d" % length)],
        "extensions": {},
    }


class _Answering:
    """One request and its answer; the client hangs up when the answer is whole, as ASGI says."""

    def __init__(self, data: bytes) -> None:
        self._incoming: list[Message] = [{"type": "http.request", "body": data}]
        self._start: Message = {"status": 500, "headers": []}
        self._pieces: list[bytes] = []
        self._whole = asyncio.Event()

    async def receive(self) -> Message:
        if self._incoming:
            return self._incoming.pop()
        await self._whole.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            self._pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._whole.set()

    def answer(self) -> Answer:
        told = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in self._start.get("headers", ())
        }
        return Answer(self._start["status"], told, b"".join(self._pieces))
