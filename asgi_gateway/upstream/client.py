"""The aiohttp forwarder: one POST to one upstream, its errors translated into ours.

The connector queues nothing and decides nothing: connections are limited in front of it (see
dispatch), `limit=0` only switches its own limit of 100 off. No cookie jar, no redirects, no proxies
from the environment, no total deadline; the work clock of a sample lives in the store.
"""

import asyncio
import io
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from asgi_gateway.errors import Interrupted, StaleConnection, Unavailable
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.upstream.verdict import judge

# A reused connection that dies this soon after our write was closed by the upstream while idle.
STALE_WITHIN_S: Final = 1.0
LARGE_BODY_BYTES: Final = 1 << 20
MODELS_TIMEOUT_S: Final = 10.0
_HEADERS: Final = {"Content-Type": "application/json", "Accept": "application/json"}


class Exchange:
    """One POST under way: what must be known of it to end it safely.

    A connect that is cancelled half-way can leave uvloop with a descriptor that belongs to
    somebody else, so `abort` during a connect waits until the connection stands.
    """

    __slots__ = ("aborted", "connecting", "reused", "task", "url", "written_at")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.connecting = False
        self.aborted = False
        self.url = ""
        self.reused = False
        self.written_at: float | None = None

    def abort(self) -> None:
        """Close the upstream connection as soon as that is safe; vLLM then frees the slot."""
        self.aborted = True
        if self.task is not None and not self.connecting:
            self.task.cancel()


class Client:
    """Connections to all upstreams. Opened and closed by the app, inside its event loop."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._urls = {url: URL(url.rstrip("/") + "/v1/completions") for url in settings.urls}

    def open(self) -> None:
        self._session = self._new_session(keepalive_timeout=self._settings.keepalive_s)
        # For the one retry that must not meet another stale connection.
        self._fresh = self._new_session(force_close=True)

    async def close(self) -> None:
        for session in (self._session, self._fresh):
            if session is not None:
                await session.close()
        self._session = self._fresh = None

    async def complete(
        self,
        url: str,
        body: bytes,
        *,
        request_id: str,
        affinity: str | None,
        exchange: Exchange,
        on_answer: Callable[[], None],
        fresh: bool = False,
    ) -> bytes:
        """POST one completion and return the whole 2xx body.

        Args:
            url: one of the configured upstreams.
            affinity: the X-Session-ID that a router hashes; None sends none.
            exchange: filled in as the request goes on; its `abort` ends it.
            on_answer: called at the headers of a 2xx answer, when the request will not be resent.
            fresh: use a connection that was never used before.

        Raises:
            Unavailable, StaleConnection, Interrupted, EngineFault, Rejected.
        """
        session = self._fresh if fresh else self._session
        if session is None:
            raise Unavailable("the gateway is not open")
        headers = {**_HEADERS, "X-Request-Id": request_id}
        if affinity is not None:
            headers["X-Session-ID"] = affinity
        try:
            async with session.post(
                self._urls[url],
                # aiohttp warns of larger bodies in one piece, and takes them as a file without.
                data=body if len(body) <= LARGE_BODY_BYTES else io.BytesIO(body),
                headers=headers,
                allow_redirects=False,
                trace_request_ctx=exchange,
            ) as response:
                if response.status < 300:
                    on_answer()
                answer = await response.read()
                status, retry_after = response.status, response.headers.get("Retry-After")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _translated(error, exchange) from error
        failure = judge(status, answer, retry_after)
        if failure is not None:
            raise failure
        return answer

    async def models(self, url: str) -> list["ServedModel"]:
        """What one upstream lists under /v1/models.

        Raises:
            Unavailable: no answer, or none that lists models.
        """
        if self._session is None:
            raise Unavailable("the gateway is not open")
        try:
            async with self._session.get(
                URL(url.rstrip("/") + "/v1/models"),
                timeout=aiohttp.ClientTimeout(total=MODELS_TIMEOUT_S),
                allow_redirects=False,
            ) as response:
                body = await response.read()
                if response.status != 200:
                    raise Unavailable(f"{url}/v1/models answered {response.status}")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{url}/v1/models: {_named(error)}") from error
        try:
            return msgspec.json.decode(body, type=_ModelList).data
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unavailable(f"{url}/v1/models does not list models: {error}") from error

    def forget_addresses(self) -> None:
        """Resolve the upstreams' names anew at the next connect."""
        if self._session is not None and isinstance(self._session.connector, aiohttp.TCPConnector):
            self._session.connector.clear_dns_cache()

    def _new_session(self, **reuse: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, happy_eyeballs_delay=None, ttl_dns_cache=10, **reuse
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._settings.connect_timeout_s,
                sock_read=self._settings.read_timeout_s,
            ),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            trust_env=False,
            trace_configs=[_trace()],
        )


class ServedModel(msgspec.Struct, frozen=True):
    """One entry of /v1/models; an adapter has a `parent` and no length of its own.

    root: what the weights were loaded from, for a base model often its hub name.
    """

    id: str
    max_model_len: int | None = None
    parent: str | None = None
    root: str | None = None


class _ModelList(msgspec.Struct):
    data: list[ServedModel]


def _trace() -> aiohttp.TraceConfig:
    """Keeps an Exchange up to date on the phases that only the library sees."""
    trace = aiohttp.TraceConfig(trace_config_ctx_factory=_exchange_of)  # type: ignore[arg-type]

    async def connecting(_: object, exchange: Any, __: object) -> None:
        exchange.connecting = True

    async def connected(_: object, exchange: Any, __: object) -> None:
        exchange.connecting = False
        if exchange.aborted and exchange.task is not None:
            exchange.task.cancel()

    async def reused(_: object, exchange: Any, __: object) -> None:
        exchange.reused = True

    async def written(_: object, exchange: Any, __: object) -> None:
        exchange.written_at = asyncio.get_running_loop().time()

    trace.on_connection_create_start.append(connecting)
    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(reused)
    trace.on_request_headers_sent.append(written)
    trace.freeze()
    return trace


def _exchange_of(trace_request_ctx: Exchange | None = None) -> Exchange:
    return trace_request_ctx or Exchange()


def _translated(error: BaseException, exchange: Exchange) -> Exception:
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return Unavailable(f"cannot connect to the upstream: {_named(error)}")
    if exchange.written_at is None:
        return Unavailable(f"the upstream did not take the request: {_named(error)}")
    elapsed_s = asyncio.get_running_loop().time() - exchange.written_at
    answered = isinstance(
        error,
        (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, aiohttp.SocketTimeoutError),
    )
    if exchange.reused and not answered and elapsed_s < STALE_WITHIN_S:
        return StaleConnection(f"an idle upstream connection was closed: {_named(error)}")
    return Interrupted(f"the upstream connection broke: {_named(error)}")


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
