"""What `serve` answers to a request that it does not take whole: too large, too slow, not HTTP."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from asgi_gateway.asgi import App, Receive, Reply, Scope, Send, send_reply

MAX_HEADERS: Final = 100
MAX_HEAD_BYTES: Final = 64 << 10
MAX_TARGET_BYTES: Final = 8 << 10
# Requests that may wait on one connection for the answer to the first.
MAX_PIPELINED: Final = 16
# Of a chunked body so much may be sizes, extensions and trailers, beside as much as its data.
MAX_FRAMING_BYTES: Final = 16 << 10


class Refused(Exception):
    """reason: what it is counted as; status and detail: what its client is told."""

    def __init__(self, reason: str, status: int, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.reply = Reply(status, msgspec.json.encode({"detail": detail}))


def malformed(detail: str) -> Refused:
    return Refused("malformed", 400, detail)


def check_head(target: bytes, headers: int, nbytes: int) -> None:
    """Whether a head of so many headers and bytes, whole or not yet, is taken. Raises Refused."""
    if len(target) > MAX_TARGET_BYTES:
        detail = f"the target has over {MAX_TARGET_BYTES} bytes, the limit"
        raise Refused("head_too_large", 414, detail)
    if headers > MAX_HEADERS:
        raise Refused("head_too_large", 431, f"over {MAX_HEADERS} headers, the limit")
    if nbytes > MAX_HEAD_BYTES:
        detail = f"the head has over {MAX_HEAD_BYTES} bytes, the limit"
        raise Refused("head_too_large", 431, detail)


def check_name(
    refused_name: Callable[[Iterable[tuple[bytes, bytes]]], str | None] | None,
    headers: Iterable[tuple[bytes, bytes]],
) -> None:
    """Whether a connection may begin with a request by this Host. Raises Refused."""
    why = refused_name(headers) if refused_name is not None else None
    if why is not None:
        raise Refused("foreign_name", 403, why)


def check_trailers(trailers: int, nbytes: int) -> None:
    """Whether a body may have so many trailers, in so many bytes. Raises Refused."""
    if trailers > MAX_HEADERS:
        raise malformed(f"over {MAX_HEADERS} trailers, the limit")
    if nbytes > MAX_HEAD_BYTES:
        raise malformed(f"the trailers have over {MAX_HEAD_BYTES} bytes, the limit")


def check_framing(framing_bytes: int, data_bytes: int) -> None:
    """Whether a chunked body is mostly data. Raises Refused."""
    if framing_bytes > MAX_FRAMING_BYTES + data_bytes:
        raise malformed(f"{framing_bytes} bytes of chunk framing around {data_bytes} bytes of data")


def refusing(refused: Refused) -> App:
    """An application that says so, in its turn."""

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send_reply(send, refused.reply, close=True)

    return app
