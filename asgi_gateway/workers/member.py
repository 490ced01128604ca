"""A worker towards its supervisor: what it is told, what it says, and that it is alone."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final, Protocol

from asgi_gateway.metrics import Metrics
from asgi_gateway.workers.fellows import Fellows
from asgi_gateway.workers.told import (
    ACCEPTING,
    DRAIN,
    END_ALL,
    LEAVE,
    RELOAD,
    STOP,
    Told,
)

log = logging.getLogger(__name__)

_READ_BYTES: Final = 4096


class Led(Protocol):
    """The server in this process. Each may be called more than once."""

    def begin_to_stop(self) -> None: ...

    def stop_now(self) -> None: ...

    def leave(self) -> None: ...

    def reload(self) -> None: ...

    def orphaned(self) -> None: ...


class Gateway(Protocol):
    """What a worker shares with the others."""

    metrics: Metrics

    async def own_state(self) -> bytes: ...

    def drain_upstream(self, url: str, draining: bool = True) -> None: ...

    def join(self, others: Fellows, end_all: Callable[[], None]) -> None: ...


class Member:
    """From its start on; led between `open` and `close`."""

    def __init__(self, told: Told, gateway: Gateway) -> None:
        self._control = socket.socket(fileno=told.control)
        self._control.setblocking(False)
        self._control.set_inheritable(False)
        self._heard = b""
        self._led: Led | None = None
        self._fellows = Fellows(told, gateway.metrics, gateway.own_state, gateway.drain_upstream)
        gateway.metrics.exposition = self._fellows.metrics
        gateway.join(self._fellows, self._end_all)
        self.has_supervisor = True

    def __repr__(self) -> str:
        return f"<Member {self._fellows!r}>"

    async def open(self, led: Led) -> None:
        """Answer the other workers, and listen to the supervisor."""
        try:
            await self._fellows.open()
        except OSError as error:  # nobody's samples depend on it
            log.error("metrics of this worker are in no sum: %s", error)  # noqa: TRY400
        self._led = led
        asyncio.get_running_loop().add_reader(self._control, self._hear)

    def accepts(self) -> None:
        self._say(ACCEPTING)

    def close(self) -> None:
        """Within the loop, at its end; the supervisor hears no more than that the process ends."""
        if self._led is not None:
            self._led = None
            asyncio.get_running_loop().remove_reader(self._control)
            self._fellows.close()

    def leave_counts(self) -> None:
        """Once nothing is counted any more; takes the folder away where nobody else is left."""
        folder = self._fellows.folder
        if self.has_supervisor:
            self._fellows.keep()
            return
        self._fellows.unlink()
        if not folder.serials():
            folder.remove()

    def _end_all(self) -> None:
        self._say(END_ALL)

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone, which is read as well
            self._control.send(word + b"\n")

    def _hear(self) -> None:
        try:
            more = self._control.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        led = self._led
        assert led is not None
        if not more:
            asyncio.get_running_loop().remove_reader(self._control)
            self.has_supervisor = False
            led.orphaned()
            return
        *words, self._heard = (self._heard + more).split(b"\n")
        does = {
            DRAIN: led.begin_to_stop,
            STOP: led.stop_now,
            LEAVE: led.leave,
            RELOAD: led.reload,
        }
        for word in words:
            does[word]()
