"""Connections that wait for their next request, and the clock that closes them."""

from __future__ import annotations

import asyncio

from loadgen.connection import Connection


class KeepAlive:
    """Closes what was idle for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # One constant lifetime, so the order of entry is the order of expiry.
        self._until: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<KeepAlive {len(self._until)} idle>"

    def add(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        deadline = loop.time() + self._seconds
        self._until[connection] = deadline
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._close_due, loop)

    def remove(self, connection: Connection) -> None:
        self._until.pop(connection, None)

    def close_all(self) -> None:
        idle, self._until = self._until, {}
        for connection in idle:
            connection.drop()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close_due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        due = []
        for connection, deadline in self._until.items():
            if deadline > now:
                self._timer = loop.call_at(deadline, self._close_due, loop)
                break
            due.append(connection)
        for connection in due:
            del self._until[connection]
            connection.drop()
