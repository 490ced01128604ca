"""The listening socket of `serve`: under many descriptors, and quiet while clients are too many.

libuv, and so uvloop, accepts one connection per listening descriptor in a turn of the loop. In a
burst of long turns that keeps new clients waiting for tens of seconds; duplicates of the descriptor
share the queue and multiply the rate.

Without a descriptor left libuv accepts what comes and closes it at once, and no upstream can be
connected to. So clients may have so many connections and no more; further ones wait in the kernel's
queue until some of those close.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from typing import Final

from asgi_gateway.kernel import accept_queue_limit
from asgi_gateway.settings import SettingsError
from asgi_gateway.settings.clients import ServerSettings

log = logging.getLogger(__name__)

COUNT: Final = 16
# Of the connections that may be open, the share that closes before more are accepted.
ROOM: Final = 0.05
# The kernel takes up to 4 MiB for a client that reads nothing, where no write deadline sees it. Of
# what it cannot send yet it takes no more than this; what is on its way is not limited.
UNSENT_BYTES: Final = 256 << 10

Factory = Callable[[], asyncio.Protocol]


def listening(server: ServerSettings) -> socket.socket:
    """Bound and listening.

    Raises:
        SettingsError: the host is not ours, the port is taken, or no descriptor is left.
    """
    try:
        return _listening(server.host, server.port, server.backlog)
    except (OSError, UnicodeError) as error:  # of a name that no name can be: a..b
        reason = error.strerror if isinstance(error, OSError) else error
        problem = f"cannot listen on {shown_host(server.host)}:{server.port}: {reason}"
        raise SettingsError([problem]) from error


def _listening(host: str, port: int, backlog: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        listener.bind(address)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def say_listening(host: str, port: int) -> None:
    """The first line on standard output, which whoever started us waits for."""
    sys.stdout.write(f"asgi-gateway listening on http://{shown_host(host)}:{port}\n")
    sys.stdout.flush()


def shown_host(host: str) -> str:
    """As it stands in a URL."""
    return f"[{host}]" if ":" in host else host


class Listeners:
    """Over a socket that listens; accepting between `accept` and `pause` or `close`."""

    def __init__(self, listener: socket.socket, backlog: int, processes: int = 1) -> None:
        """processes: how many accept from the same queue; together they have COUNT duplicates,
        since each connection wakes them all."""
        # Accepts nothing itself: it keeps the queue while none of the others is open.
        self._socket = listener
        self._backlog = backlog
        self._count = -(-COUNT // processes)
        self.port: int = listener.getsockname()[1]
        self._servers: list[asyncio.AbstractServer] = []

    def __repr__(self) -> str:
        return f"<Listeners {self.port}, {len(self._servers)} accepting>"

    @property
    def accepting(self) -> bool:
        return bool(self._servers)

    async def accept(self, factory: Factory) -> None:
        """Accept connections; what waits in the queue comes first."""
        loop = asyncio.get_running_loop()
        for _ in range(self._count):
            duplicate = self._socket.dup()
            try:
                server = await loop.create_server(factory, sock=duplicate, backlog=self._backlog)
            except BaseException:
                duplicate.close()
                raise
            self._servers.append(server)

    def pause(self) -> None:
        """Accept nothing more; who comes waits in the kernel's queue."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def close(self) -> None:
        """Listen no more: who waits is reset, who comes is refused."""
        self.pause()
        self._socket.close()


class Limit:
    """How many connections clients may have, and when more are let in after it was reached."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._again_at = most - max(1, int(most * ROOM))

    def __repr__(self) -> str:
        return f"<Limit {self.most}>"

    def reached(self, count: int) -> bool:
        return count >= self.most

    def has_room(self, count: int) -> bool:
        return count <= self._again_at


def warn_of_short_queue(backlog: int) -> None:
    """The kernel shortens an accept queue without a word, and refuses what it has no room for."""
    allowed = accept_queue_limit()
    if allowed is not None and allowed < backlog:
        log.warning(
            "server.backlog = %d was asked, the kernel allows %d connections to wait:"
            " sysctl -w net.core.somaxconn=%d",
            backlog,
            allowed,
            backlog,
        )
