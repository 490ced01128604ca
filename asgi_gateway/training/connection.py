"""Connections to the trainer: the session they are pooled in, and ending a request safely."""

import asyncio
from typing import Any, Final

import aiohttp

BROKEN: Final = (TimeoutError, aiohttp.ClientError, OSError)
"""What reading from a connection raises when it breaks or falls silent."""

# Signed URLs and cookies; aiohttp's own limit is 8 KiB a line.
_HEADER_CAP_BYTES: Final = 64 << 10
# What aiohttp would add where the client said nothing.
_AUTOMATIC: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class Exchange:
    """One request under way, and how to end it.

    A connect that is cancelled half-way can leave uvloop with a descriptor that belongs to
    somebody else, so `abort` during a connect waits until the connection stands or fails.
    """

    __slots__ = ("aborted", "answering", "connecting", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.connecting = False
        self.answering = False
        self.aborted = False

    def abort(self) -> None:
        """End it as soon as that is safe."""
        self.aborted = True
        if self.task is not None and not self.connecting:
            self.task.cancel()

    def connected(self) -> None:
        """The connection stands; what was aborted meanwhile ends now."""
        self.connecting = False
        if self.aborted and self.task is not None:
            self.task.cancel()


def new_session(timeout: aiohttp.ClientTimeout, keepalive_s: float) -> aiohttp.ClientSession:
    """A session that adds, keeps, decodes and limits nothing."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, happy_eyeballs_delay=None, ttl_dns_cache=10, keepalive_timeout=keepalive_s
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=timeout,
        auto_decompress=False,
        skip_auto_headers=_AUTOMATIC,
        trust_env=False,
        max_line_size=_HEADER_CAP_BYTES,
        max_field_size=_HEADER_CAP_BYTES,
        trace_configs=[_trace()],
    )


def named(error: BaseException) -> str:
    """An error in words, also where it has none of its own."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _trace() -> aiohttp.TraceConfig:
    """Tells an Exchange of the phase that only the library sees."""
    trace = aiohttp.TraceConfig(trace_config_ctx_factory=_exchange_of)  # type: ignore[arg-type]

    async def connecting(_: object, exchange: Any, __: object) -> None:
        exchange.connecting = True

    async def connected(_: object, exchange: Any, __: object) -> None:
        exchange.connected()

    trace.on_connection_create_start.append(connecting)
    trace.on_connection_create_end.append(connected)
    trace.freeze()
    return trace


def _exchange_of(trace_request_ctx: Exchange | None = None) -> Exchange:
    return trace_request_ctx or Exchange()
