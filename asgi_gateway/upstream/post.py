"""What the aiohttp forwarder must know of a POST, and what the library's errors mean."""

import asyncio
import socket
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from asgi_gateway.errors import Interrupted, StaleConnection, Unavailable, UpstreamError
from asgi_gateway.upstream.addresses import Addresses
from asgi_gateway.upstream.exchange import is_ours

# A reused connection that dies this soon after our write was closed by the upstream while idle.
STALE_WITHIN_S: Final = 1.0


class Post:
    """What must be known of one POST to end it safely.

    A connect that is cancelled half-way can leave uvloop with a descriptor that belongs to
    somebody else, so an abort during a connect waits until the connection stands.
    """

    __slots__ = (
        "aborted",
        "connecting",
        "heard_at",
        "reused",
        "session",
        "task",
        "url",
        "written_at",
    )

    def __init__(self, url: str = "") -> None:
        self.url = url
        # The last piece of an answer, in the loop's time.
        self.heard_at = float("-inf")
        self.session: aiohttp.ClientSession | None = None
        self.task: asyncio.Task[None] | None = None
        self.connecting = False
        self.aborted = False
        self.reused = False
        self.written_at: float | None = None

    def abort(self) -> None:
        self.aborted = True
        if self.task is not None and not self.connecting:
            self.task.cancel()


class Resolver(AbstractResolver):
    """Our addresses, as the connector asks for them."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002 - all of them
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._addresses.resolved(host, port)
        ]

    async def close(self) -> None:
        """They are the client's."""


def trace() -> aiohttp.TraceConfig:
    """Keeps a Post up to date on the phases that only the library sees."""
    config = aiohttp.TraceConfig(trace_config_ctx_factory=_post_of)  # type: ignore[arg-type]

    async def connecting(_: object, post: Any, __: object) -> None:
        post.connecting = True

    async def connected(_: object, post: Any, __: object) -> None:
        post.connecting = False
        if post.aborted and post.task is not None:
            post.task.cancel()

    async def reused(_: object, post: Any, __: object) -> None:
        post.reused = True

    async def written(_: object, post: Any, __: object) -> None:
        post.written_at = asyncio.get_running_loop().time()

    config.on_connection_create_start.append(connecting)
    config.on_connection_create_end.append(connected)
    config.on_connection_reuseconn.append(reused)
    config.on_request_headers_sent.append(written)
    config.freeze()
    return config


def _post_of(trace_request_ctx: Post | None = None) -> Post:
    return trace_request_ctx or Post()


def translated(error: BaseException, post: Post) -> UpstreamError:
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        text = f"cannot connect to the upstream: {named(error)}"
        return Unavailable(text, ours=is_ours(error))
    if post.written_at is None:
        return Unavailable(f"the upstream did not take the request: {named(error)}")
    elapsed_s = asyncio.get_running_loop().time() - post.written_at
    answered = isinstance(
        error,
        (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, aiohttp.SocketTimeoutError),
    )
    if post.reused and not answered and elapsed_s < STALE_WITHIN_S:
        return StaleConnection(f"an idle upstream connection was closed: {named(error)}")
    return Interrupted(f"the upstream connection broke: {named(error)}")


def named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
