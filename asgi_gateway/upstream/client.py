"""The aiohttp forwarder: one task a POST, and the rare calls of both transports.

The connector queues nothing and decides nothing: connections are limited in front of it (see
dispatch), `limit=0` only switches its own limit of 100 off. No cookie jar, no redirects, no proxies
from the environment, no total deadline; the work clock of a sample lives in the store.
"""

import asyncio
import io
from collections.abc import Collection, Sequence
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from asgi_gateway.addresses import shown_url
from asgi_gateway.capped import read_capped
from asgi_gateway.errors import Unavailable
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.upstream.addresses import Addresses
from asgi_gateway.upstream.exchange import Answer, Exchange, is_ours, too_large
from asgi_gateway.upstream.large import LARGE_BYTES
from asgi_gateway.upstream.post import Post, Resolver, named, trace, translated

LARGE_BODY_BYTES: Final = 1 << 20
MODELS_TIMEOUT_S: Final = 10.0
# Of what is answered to the gateway's own questions, /v1/models and /health.
LISTING_BYTES: Final = 16 << 20
CLOSE_WITHIN_S: Final = 1.0
_HEADERS: Final = {"Content-Type": "application/json", "Accept": "application/json"}


class Client:
    """Connections to all upstreams; an `exchange.Transport`, and who asks for their models."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._posts: set[Post] = set()
        self._session: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        # Those with connections to addresses that are gone, until their posts are over.
        self._retired: set[aiohttp.ClientSession] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self.addresses = Addresses()
        self.addresses.gone.append(self._gone)
        self._urls: dict[str, URL] = {}
        self.serve(settings.urls)

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
        for session in (self._session, self._fresh, *self._retired):
            if session is not None:
                await session.close()
        await asyncio.gather(*self._closing)
        await self.addresses.close()
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
        more: Sequence[tuple[str, str]] = (),
    ) -> None:
        headers = {**_HEADERS, "X-Request-Id": request_id}
        if affinity is not None:
            headers["X-Session-ID"] = affinity
        headers.update(more)
        exchange.work = post = Post(url)
        self._posts.add(post)
        post.task = asyncio.create_task(self._run(exchange, post, url, body, headers, fresh=fresh))
        post.task.add_done_callback(lambda _: self._over(post))

    def _over(self, post: Post) -> None:
        self._posts.discard(post)
        if self._retired:
            self._close_retired()

    def _gone(self, *_: object) -> None:
        """A name has lost addresses, and a connector does not say which connections lead there:
        new requests get a new one, the old one ends with its last request."""
        if self._session is not None:
            self._retired.add(self._session)
            self._session = self._new_session(keepalive_timeout=self._settings.keepalive_s)
            self._close_retired()

    def _close_retired(self) -> None:
        for session in self._retired - {post.session for post in self._posts}:
            self._retired.discard(session)
            closing = asyncio.create_task(session.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def abort(self, exchange: Exchange) -> None:
        post, exchange.work = exchange.work, None
        if isinstance(post, Post):
            post.abort()

    async def _run(
        self,
        exchange: Exchange,
        post: Post,
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
        post: Post,
        url: str,
        body: bytes,
        headers: dict[str, str],
        *,
        fresh: bool,
    ) -> Answer:
        """The whole answer.

        Raises:
            Unavailable, StaleConnection, Interrupted; Unreadable: it has too many bytes.
        """
        session = self._fresh if fresh else self._session
        if session is None:
            raise Unavailable("the gateway is not open")
        post.session = session
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
                pieces = await self._pieces(response, exchange, post)
                return Answer(response.status, pieces, response.headers.get("Retry-After"))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise translated(error, post) from error

    async def _pieces(
        self, response: aiohttp.ClientResponse, exchange: Exchange, post: Post
    ) -> list[bytes]:
        """The body, as it comes. Raises Unreadable beyond its bound."""
        now = asyncio.get_running_loop().time
        pieces: list[bytes] = []
        # Most answers end below the first bound; only then is it asked what theirs is.
        nbytes, cap_bytes, known = 0, LARGE_BYTES, False
        post.heard_at = now()
        async for piece in response.content.iter_any():
            post.heard_at = now()
            pieces.append(piece)
            nbytes += len(piece)
            if nbytes > cap_bytes:
                if not known:
                    cap_bytes, known = exchange.answer_cap(), True
                if nbytes > cap_bytes:
                    raise too_large(cap_bytes)
        return pieces or [b""]

    async def models(self, url: str) -> list["ServedModel"]:
        """What one upstream lists under /v1/models.

        Raises:
            Unavailable: no answer, or none that lists models.
        """
        if self._fresh is None:
            raise Unavailable("the gateway is not open")
        try:
            async with self._fresh.get(
                URL(url.rstrip("/") + "/v1/models"),
                timeout=aiohttp.ClientTimeout(total=MODELS_TIMEOUT_S),
                allow_redirects=False,
            ) as response:
                body = await _listing(response)
                if response.status != 200:
                    raise Unavailable(f"{shown_url(url)}/v1/models answered {response.status}")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{shown_url(url)}/v1/models: {named(error)}") from error
        try:
            return msgspec.json.decode(body, type=_ModelList).data
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unavailable(
                f"{shown_url(url)}/v1/models does not list models: {error}"
            ) from error

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
                await _listing(response)
                if response.status >= 500:
                    raise Unavailable(f"/health answered {response.status}")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"/health: {named(error)}", ours=is_ours(error)) from error

    def is_sent(self, exchange: Exchange) -> bool:
        return isinstance(exchange.work, Post) and exchange.work.written_at is not None

    def heard_within(self, url: str, seconds: float) -> bool:
        if self._session is None:
            return False
        since = asyncio.get_running_loop().time() - seconds
        return any(post.url == url and post.heard_at > since for post in self._posts)

    def forget_addresses(self) -> None:
        """Resolve the upstreams' names anew at the next connect."""
        self.addresses.forget()

    def reconfigure(self, settings: UpstreamSettings) -> None:
        self._settings = settings

    def serve(self, urls: Collection[str]) -> None:
        self._urls = {url: URL(url.rstrip("/") + "/v1/completions") for url in urls}

    def _new_session(self, **reuse: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                happy_eyeballs_delay=None,
                use_dns_cache=False,
                resolver=Resolver(self.addresses),
                **reuse,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._settings.connect_timeout_s,
                sock_read=self._settings.read_timeout_s,
            ),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            # Nothing packed was asked for, and a small body of it may be a large one.
            auto_decompress=False,
            trust_env=False,
            trace_configs=[trace()],
        )


async def _listing(response: aiohttp.ClientResponse) -> bytes:
    """The body of a call of the gateway itself. Raises Unavailable: it is no such body."""

    def too_large() -> Exception:
        return Unavailable(f"{response.url.path} answered more than {LISTING_BYTES} bytes")

    return await read_capped(response, LISTING_BYTES, too_large)


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
