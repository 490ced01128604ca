"""Which headers cross the proxy, and which belong to one connection only (RFC 9110, 7.6.1)."""

from collections.abc import Iterable
from typing import Final, TypeAlias

from asgi_gateway.asgi import Scope

Pairs: TypeAlias = list[tuple[bytes, bytes]]

# Proxy-Authenticate and Proxy-Authorization concern the next proxy, which is us.
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Ours to say: the host is the trainer's; the length follows from how the body is framed; the server
# answered "100 Continue" itself as soon as the body was asked for.
_SAID_ANEW: Final = frozenset({b"host", b"content-length", b"expect"})
_FORWARDED: Final = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host")
# Neither has a body, and uvicorn takes a length as a promise to send one.
_BODILESS: Final = frozenset({204, 304})


def is_bodiless(method: str, status: int) -> bool:
    """Whether an answer ends with its headers."""
    return method == "HEAD" or status in _BODILESS


def request_headers(scope: Scope) -> list[tuple[str, str]]:
    """What the trainer is sent, without Host and framing; the order and duplicates are kept."""
    pairs = _end_to_end(scope["headers"])
    forwarded = _forwarded(scope, pairs)
    kept = [pair for pair in pairs if pair[0] not in _SAID_ANEW and pair[0] not in _FORWARDED]
    return [(_text(name), _text(value)) for name, value in (*kept, *forwarded)]


def response_headers(status: int, raw: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """What the client is sent; the order and duplicates are kept."""
    pairs = _end_to_end(raw)
    if status in _BODILESS:
        return [pair for pair in pairs if pair[0] != b"content-length"]
    return pairs


def declared_length(scope: Scope) -> int | None:
    """The Content-Length by which the body is framed; None where it is chunked or not said."""
    length: int | None = None
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            return None  # it overrides a length (RFC 9112, 6.3), whoever let both pass
        if name == b"content-length" and value.isdigit():
            length = int(value)
    return length


def _end_to_end(raw: Iterable[tuple[bytes, bytes]]) -> Pairs:
    pairs = [(bytes(name).lower(), bytes(value)) for name, value in raw]
    named = {
        token.strip().lower()
        for name, value in pairs
        if name == b"connection"
        for token in value.split(b",")
    }
    return [pair for pair in pairs if pair[0] not in HOP_BY_HOP and pair[0] not in named]


def _forwarded(scope: Scope, pairs: Pairs) -> Pairs:
    """X-Forwarded-*: what the client claimed, then what we saw.

    Appended and never replaced: the last value of each is true as far as we can know, and whoever
    trusts more hops than us reads further to the left.
    """
    client = scope.get("client")
    host = next((value for name, value in pairs if name == b"host"), b"")
    seen = {
        b"x-forwarded-for": str(client[0]).encode() if client else b"unknown",
        b"x-forwarded-proto": str(scope.get("scheme", "http")).encode(),
        b"x-forwarded-host": host,
    }
    return [
        (name, b", ".join([*(v for n, v in pairs if n == name), seen[name]]))
        for name in _FORWARDED
        if seen[name]
    ]


def _text(value: bytes) -> str:
    """For aiohttp, which writes text as UTF-8: bytes that are UTF-8 arrive as they were.

    Others are read as Latin-1 and arrive re-encoded; escaping them would make aiohttp drop them.
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
