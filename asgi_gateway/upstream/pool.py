"""The lean forwarder: persistent HTTP/1.1 connections, no task and no future a request.

Only a connect is a task. Nothing is queued and nothing decided here: connections are limited in
front of it (see dispatch), the work clock of a sample is the store's. No redirects, no cookies, no
proxies from the environment, nothing decompressed.
"""

import asyncio
import functools
from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import urlsplit

from asgi_gateway.addresses import shown_url
from asgi_gateway.errors import Interrupted, Unavailable
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.upstream.addresses import Addresses
from asgi_gateway.upstream.connection import Connection
from asgi_gateway.upstream.exchange import Exchange, is_ours
from asgi_gateway.upstream.large import LargeBodies
from asgi_gateway.upstream.origin import Origin

# How often what is idle or silent is looked for.
_SWEEP_S: Final = 0.5


class Pool:
    """Connections to all upstreams; an `exchange.Transport`."""

    def __init__(self, settings: UpstreamSettings, addresses: Addresses | None = None) -> None:
        self._addresses = addresses or Addresses()
        self._addresses.gone.append(self._gone)
        self.loop: asyncio.AbstractEventLoop
        self._connect_timeout_s = settings.connect_timeout_s
        self._read_timeout_s = settings.read_timeout_s
        self._keepalive_s = settings.keepalive_s
        self._sweep_s = min(_SWEEP_S, settings.read_timeout_s / 4, (settings.keepalive_s or 1) / 4)
        self._origins: dict[str, Origin] = {}
        # The connection used last is taken first, so the longest idle stand in front.
        self._idle: dict[Origin, dict[Connection, None]] = {}
        # Those with a request on them, roughly the longest silent first.
        self._busy: dict[Connection, None] = {}
        self._connects: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = True
        self.large = LargeBodies()
        self.sweeps = 0
        self.reconfigure(settings)
        self.serve(settings.urls)

    def __repr__(self) -> str:
        idle = sum(map(len, self._idle.values()))
        return f"<Pool {len(self._busy)} busy, {idle} idle, {len(self._connects)} connecting>"

    def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in self._connects:
            task.cancel()
        await self._addresses.close()
        await asyncio.gather(*self._connects, return_exceptions=True)
        for connections in (self._busy, *self._idle.values()):
            for connection in list(connections):
                connection.drop()
            connections.clear()

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
        origin = self._origins.get(url)
        if origin is None:
            self.loop.call_soon(
                exchange.failed, Unavailable(f"the upstream {shown_url(url)!r} names no host")
            )
            return
        head = origin.head(request_id, affinity, len(body), more)
        connection = None if fresh else self._reusable(origin)
        if connection is not None:
            self._start(connection, exchange, head, body)
            return
        self._make_room()
        exchange.work = task = self.loop.create_task(self._connect(origin, exchange, head, body))
        self._connects.add(task)
        task.add_done_callback(self._connects.discard)

    def abort(self, exchange: Exchange) -> None:
        work, exchange.work = exchange.work, None
        if isinstance(work, Connection):
            self._busy.pop(work, None)
            work.drop()
        elif work is not None:
            # Safe, unlike with sockets of one's own: the loop owns this one from its making on.
            work.cancel()

    def is_sent(self, exchange: Exchange) -> bool:
        return isinstance(exchange.work, Connection)

    def heard_within(self, url: str, seconds: float) -> bool:
        since, origin = self.loop.time() - seconds, self._origins.get(url)
        return any(
            connection.origin is origin and connection.heard_at > max(since, connection.started_at)
            for connection in self._busy
        )

    def forget_addresses(self) -> None:
        self._addresses.forget()

    def reconfigure(self, settings: UpstreamSettings) -> None:
        self._max_connections = settings.max_connections

    def serve(self, urls: Collection[str]) -> None:
        for url in urls:
            if url not in self._origins and urlsplit(url).hostname:
                origin = self._origins[url] = Origin(url)
                self._idle[origin] = {}
        for url in [url for url in self._origins if url not in urls]:
            for connection in self._idle.pop(self._origins.pop(url)):
                connection.drop()

    # --- from the connections ---------------------------------------------------------------------

    def released(self, connection: Connection, *, reusable: bool) -> None:
        self._busy.pop(connection, None)
        if reusable and not self._closed:
            idle = self._idle.get(connection.origin)
            if connection.retired or idle is None:
                connection.drop()
            else:
                idle[connection] = None

    def lost(self, connection: Connection) -> None:
        idle = self._idle.get(connection.origin)
        if idle is not None:
            idle.pop(connection, None)

    def _gone(self, host: str, port: int, addresses: frozenset[str]) -> None:
        """A name has lost addresses: their connections end, once they are idle."""
        for origin, idle in self._idle.items():
            if (origin.host, origin.port) == (host, port):
                for connection in [each for each in idle if each.address in addresses]:
                    del idle[connection]
                    connection.drop()
        for connection in self._busy:
            origin = connection.origin
            if (origin.host, origin.port) == (host, port) and connection.address in addresses:
                connection.retired = True

    # --- inside -----------------------------------------------------------------------------------

    def _start(self, connection: Connection, exchange: Exchange, head: bytes, body: bytes) -> None:
        self._busy[connection] = None
        connection.start(exchange, head, body)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)

    def _reusable(self, origin: Origin) -> Connection | None:
        """The idle connection used last, if the upstream will not have closed it by now."""
        idle = self._idle[origin]
        while idle:
            connection, _ = idle.popitem()
            if self.loop.time() - connection.heard_at >= self._keepalive_s:
                connection.drop()  # and the others have been idle for longer: the sweep's
                return None
            if not connection.closing():
                return connection
        return None

    def _make_room(self) -> None:
        """Give up an idle connection to another upstream where this one would be over the limit."""
        idle = max(self._idle.values(), key=len)
        held = len(self._busy) + len(self._connects) + sum(map(len, self._idle.values()))
        if held >= self._max_connections and idle:
            connection = next(iter(idle))
            del idle[connection]
            connection.drop()

    async def _connect(self, origin: Origin, exchange: Exchange, head: bytes, body: bytes) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._connected(origin)
        except (OSError, UnicodeError) as error:
            exchange.work = None
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            text = f"cannot connect to the upstream {origin}: {reason}"
            exchange.failed(Unavailable(text, ours=is_ours(error)))
        else:
            self._start(connection, exchange, head, body)

    async def _connected(self, origin: Origin) -> Connection:
        """A new connection to the first address that takes it.

        Raises:
            OSError: none does, or the name does not resolve; TimeoutError is one.
        """
        failure = OSError("the name has no address")
        for address in await self._addresses.resolved(origin.host, origin.port):
            try:
                _, connection = await self.loop.create_connection(
                    functools.partial(Connection, self, origin, address),
                    address,
                    origin.port,
                    ssl=origin.ssl,
                    server_hostname=origin.host if origin.ssl else None,
                )
            except OSError as error:
                failure = error
            else:
                return connection
        try:
            raise failure
        finally:
            del failure  # else it and this frame hold each other

    def _sweep(self) -> None:
        """Close what has been idle too long; end the requests of upstreams that fell silent."""
        self._sweeper = None
        self.sweeps += 1
        now = self.loop.time()
        for idle in self._idle.values():
            while idle:
                connection = next(iter(idle))
                if connection.heard_at > now - self._keepalive_s:
                    break
                del idle[connection]
                connection.drop()
        self.large.sweep(now)
        for origin in self._idle:
            self._addresses.keep_fresh(origin.host, origin.port)
        self._end_silent(now - self._read_timeout_s)
        if self._busy or any(self._idle.values()):
            self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)

    def _end_silent(self, silent_since: float) -> None:
        """End the requests on connections that were not heard since that time of the loop."""
        while self._busy:
            connection = next(iter(self._busy))
            if connection.started_at > silent_since:
                return
            if connection.heard_at > silent_since:
                # Heard since it came to the head: its turn comes again when that is too long ago.
                connection.started_at = connection.heard_at
                self._busy[connection] = self._busy.pop(connection)
                continue
            text = f"no byte came from the upstream for {self._read_timeout_s:g} s"
            connection.fail(Interrupted(text))
