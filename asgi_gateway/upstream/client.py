"""The aiohttp forwarder: one task a POST, and the rare calls of both transports.

The connector queues nothing and decides nothing: connections are limited in front of it (see
dispatch), `limit=0` only switches its own limit of 100 off. No cookie jar, no redirects, no proxies
from the environment, no total deadline; the work clock of a sample lives in the store.
"""

import asyncio
import io
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from asgi_gateway.errors import Interrupted, StaleConnection, Unavailable, UpstreamError
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.upstream.exchange import Answer, Exchange

# A reused connection that dies this soon after our write was closed by the upstream while idle.
STALE_WITHIN_S: Final = 1.0
LARGE_BODY_BYTES: Final = 1 << 20
MODELS_TIMEOUT_S: Final = 10.0
CLOSE_WITHIN_S: Final = 1.0
_HEADERS: Final = {"Content-Type": "application/json", "Accept": "application/json"}


class _Post:
    """What must be known of one POST to end it safely.

    A connect that is cancelled half-way can leave uvloop with a descriptor that belongs to
    somebody else, so an abort during a connect waits until the connection stands.
    """

    __slots__ = ("aborted", "connecting", "reused", "task", "written_at")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.connecting = False
        self.aborted = False
        self.reused = False
        self.written_at: float | None = None

    def abort(self) -> None:
        self.aborted = True
        if self.task is not None and not self.connecting:
            self.task.cancel()


class Client:
    """Connections to all upstreams; an `exchange.Transport`, and who asks for their models."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._posts: set[_Post] = set()
        self._session: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._urls = {url: URL(url.rstrip("/") + "/v1/completions") for url in settings.urls}

    def open(self) -> None:
        self._session = self._new_session(keepalive_timeout=self._settings.keepalive_s)
        # For the one retry that must not meet another stale connection.
        self._fresh = self._new_session(force_close=True)

    async def close(self) -> None:
        for post in self._posts:
            post.abort()
        tasks = [post.task for post in self._posts if post.task is not None]
        if tasks:
            # What is still connecting then cannot be cancelled safely and ends with the loop.
            await asyncio.wait(tasks, timeout=CLOSE_WITHIN_S)
        for session in (self._session, self._fresh):
            if session is not None:
                await session.close()
        self._session = self._fresh = None

    def send(
        self,
        exchange: Exchange,
        url: str,
        body: bytes,
        *,
        request_id: str,
        affinity: str | None,
        fresh: bool = False,
    ) -> None:
        headers = {**_HEADERS, "X-Request-Id": request_id}
        if affinity is not None:
            headers["X-Session-ID"] = affinity
        exchange.work = post = _Post()
        self._posts.add(post)
        post.task = asyncio.create_task(self._run(exchange, post, url, body, headers, fresh=fresh))
        post.task.add_done_callback(lambda _: self._posts.discard(post))

    def abort(self, exchange: Exchange) -> None:
        post, exchange.work = exchange.work, None
        if isinstance(post, _Post):
            post.abort()

    async def _run(
        self,
        exchange: Exchange,
        post: _Post,
        url: str,
        body: bytes,
        headers: dict[str, str],
        *,
        fresh: bool,
    ) -> None:
        answer: Answer | Exception
        try:
            answer = await self._post(exchange, post, url, body, headers, fresh=fresh)
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer tells them apart
            answer = error
        if post.aborted:
            return
        exchange.work = None
        if isinstance(answer, Exception):
            exchange.failed(answer)
        else:
            exchange.answered(answer)

    async def _post(
        self,
        exchange: Exchange,
        post: _Post,
        url: str,
        body: bytes,
        headers: dict[str, str],
        *,
        fresh: bool,
    ) -> Answer:
        """The whole answer.

        Raises:
            Unavailable, StaleConnection, Interrupted.
        """
        session = self._fresh if fresh else self._session
        if session is None:
            raise Unavailable("the gateway is not open")
        try:
            async with session.post(
                self._urls[url],
                # aiohttp warns of larger bodies in one piece, and takes them as a file without.
                data=body if len(body) <= LARGE_BODY_BYTES else io.BytesIO(body),
                headers=headers,
                allow_redirects=False,
                trace_request_ctx=post,
            ) as response:
                if response.status < 300 and not post.aborted:
                    exchange.answering()
                answer = await response.read()
                return Answer(response.status, (answer,), response.headers.get("Retry-After"))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _translated(error, post) from error

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

    async def health(self, url: str) -> None:
        """Ask one upstream whether it is alive. One without this route is: it answers.

        Raises:
            Unavailable: no answer within `health_timeout_s`, or a 5xx.
        """
        if self._fresh is None:
            raise Unavailable("the gateway is not open")
        try:
            async with self._fresh.get(
                URL(url.rstrip("/") + "/health"),
                timeout=aiohttp.ClientTimeout(total=self._settings.health_timeout_s),
                allow_redirects=False,
            ) as response:
                await response.read()
                if response.status >= 500:
                    raise Unavailable(f"/health answered {response.status}")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"/health: {_named(error)}") from error

    def is_sent(self, exchange: Exchange) -> bool:
        return isinstance(exchange.work, _Post) and exchange.work.written_at is not None

    def heard_within(self, url: str, seconds: float) -> bool:  # noqa: ARG002 - it is not told
        return False

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
    """Keeps a _Post up to date on the phases that only the library sees."""
    trace = aiohttp.TraceConfig(trace_config_ctx_factory=_post_of)  # type: ignore[arg-type]

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

    trace.on_connection_create_start.append(connecting)
    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(reused)
    trace.on_request_headers_sent.append(written)
    trace.freeze()
    return trace


def _post_of(trace_request_ctx: _Post | None = None) -> _Post:
    return trace_request_ctx or _Post()


def _translated(error: BaseException, post: _Post) -> UpstreamError:
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return Unavailable(f"cannot connect to the upstream: {_named(error)}")
    if post.written_at is None:
        return Unavailable(f"the upstream did not take the request: {_named(error)}")
    elapsed_s = asyncio.get_running_loop().time() - post.written_at
    answered = isinstance(
        error,
        (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, aiohttp.SocketTimeoutError),
    )
    if post.reused and not answered and elapsed_s < STALE_WITHIN_S:
        return StaleConnection(f"an idle upstream connection was closed: {_named(error)}")
    return Interrupted(f"the upstream connection broke: {_named(error)}")


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
