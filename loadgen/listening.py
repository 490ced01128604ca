"""The sockets that a stand-in listens on, and how it stops listening for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

LISTEN_BACKLOG: Final = 8192
"""Connections waiting to be accepted; Linux cuts it to net.core.somaxconn, 4096 by default."""

REOPEN_EVERY_S: Final = 0.1


class Listener:
    """Listens on one port of several addresses.

    While shut nobody has the port, so that clients are refused by the kernel; connections that
    exist go on.
    """

    def __init__(
        self, protocol: Callable[[], asyncio.Protocol], hosts: Sequence[str], port: int
    ) -> None:
        """port: 0 picks a free one, the same for all addresses."""
        self._protocol = protocol
        self._hosts = hosts
        self.port = port
        self._servers: list[asyncio.Server] = []
        self._reopening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._shut_until = 0.0

    def __repr__(self) -> str:
        return f"<Listener {self.port} {'shut' if self.shut else 'open'}>"

    @property
    def shut(self) -> bool:
        return not self._servers

    async def start(self, *, shared: bool = False) -> None:
        """shared: others listen on the same port. Raises OSError where it cannot be had."""
        self._loop = asyncio.get_running_loop()
        self._shared = shared
        await self._open()

    async def _open(self) -> None:
        opened: list[asyncio.Server] = []
        try:
            for host in self._hosts:
                server = await self._loop.create_server(
                    self._protocol,
                    host,
                    self.port,
                    backlog=LISTEN_BACKLOG,
                    reuse_port=self._shared or None,
                )
                opened.append(server)
                self.port = server.sockets[0].getsockname()[1]
        except OSError:
            for server in opened:
                server.close()
            raise
        self._servers = opened

    def refuse(self, seconds: float) -> None:
        """Listen no more for so long from now; longer where it is asked for again meanwhile."""
        self._shut_until = max(self._shut_until, self._loop.time() + seconds)
        self._close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._shut_until, self._reopen)

    def _reopen(self) -> None:
        self._timer = None
        self._reopening = self._loop.create_task(self._try_to_open())

    async def _try_to_open(self) -> None:
        try:
            await self._open()
        except OSError:  # somebody took the port meanwhile
            if self._timer is None:
                self._timer = self._loop.call_later(REOPEN_EVERY_S, self._reopen)
        # Put off while it opened. Not by the clock, which may read less than a timer was set for.
        if self._timer is not None:
            self._close()

    def _close(self) -> list[asyncio.Server]:
        closed, self._servers = self._servers, []
        for server in closed:
            server.close()
        return closed

    def stop(self) -> list[asyncio.Server]:
        """For good; returns what is left to wait for."""
        for pending in (self._timer, self._reopening):
            if pending is not None:
                pending.cancel()
        return self._close()
