"""Calls to an inner ASGI application that is the trainer: the same as over HTTP, in process."""

from collections.abc import Mapping

import msgspec

from asgi_gateway.asgi import App, Message
from asgi_gateway.training.proxy import Answer


class Embedded:
    """Asks an ASGI application as a client would; its routes see an ordinary request."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def ask(self, method: str, path: str, body: object, headers: Mapping[str, str]) -> Answer:
        data = b"" if body is None else msgspec.json.encode(body)
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                *(pair for pair in pairs if pair[0] != b"content-length"),
                (b"content-length", b"%d" % len(data)),
            ],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }
        sent: list[Message] = []
        incoming: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Message:
            return incoming.pop() if incoming else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        start = next(message for message in sent if message["type"] == "http.response.start")
        told = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in start["headers"]
        }
        pieces = [m.get("body", b"") for m in sent if m["type"] == "http.response.body"]
        return Answer(start["status"], told, b"".join(pieces))
