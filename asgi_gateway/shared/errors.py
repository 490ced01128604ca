"""What may come of a command in place of a reply."""

from typing import Final

from asgi_gateway.errors import GatewayError
from asgi_gateway.textline import one_line

# Of what a server says; its errors are one short line.
MAX_TEXT: Final = 300


class SharedStoreError(GatewayError):
    """Root of all of them. Where one reaches a client it means: not now."""

    status = 503
    retry_after_s = 1.0


class NotSent(SharedStoreError):
    """Nothing was done: no byte left us, or the server said that it does not do it now."""


class Overfull(NotSent):
    """As many commands or bytes wait as may."""


class Unanswered(SharedStoreError):
    """Sent, and no reply came: it may have been done."""


class ServerError(SharedStoreError):
    """The server's own error. code: its first word, as OOM, READONLY, NOSCRIPT; ERR for most."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text, MAX_TEXT))
        self.code = text.partition(" ")[0][:32]


class Unreachable(SharedStoreError):
    """No connection, or to a server that is not the one wanted."""


class MissingExtra(SharedStoreError):
    """The package that reads replies is not installed."""


class BadUrl(ValueError):
    """A URL that names no server; the text shows nothing secret of it."""
