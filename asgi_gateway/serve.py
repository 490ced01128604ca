"""`asgi-gateway serve`: the gateway under uvicorn, from the listening socket to the exit status."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn
from msgspec.structs import replace

from asgi_gateway.access.visited import own_names
from asgi_gateway.clock import SystemClock
from asgi_gateway.configuration import default_state_dir
from asgi_gateway.descriptors import raise_descriptor_limit
from asgi_gateway.frontdoor import FrontDoor
from asgi_gateway.guarded import GuardedProtocol
from asgi_gateway.listeners import Limit, Listeners, warn_of_short_queue
from asgi_gateway.processlog import ProcessLog
from asgi_gateway.settings import Settings, SettingsError
from asgi_gateway.standalone import Standalone

log = logging.getLogger(__name__)

# What is needed beside the connections to upstreams: our own, and clients enough to be of use.
RESERVED_DESCRIPTORS: Final = 128
# Listeners, journal, logs, the loop's own, the few connections that ask for models.
OWN_DESCRIPTORS: Final = 64
# Next to nothing here is cyclic, and collecting with the interpreter's own thresholds took 38% of
# the CPU of a burst, in pauses of up to 0.2 s: thousands of requests in flight are young objects
# that survive, and each full pass walks all of them.
GC_THRESHOLDS: Final = (10_000, 20, 100)
# Answers under way when the drain is over are finished for so long; a client that reads none of
# them holds nothing up, nor does a trainer or an upstream that does not answer.
FINISH_S: Final = 10.0
# And for so long after one signal more, which may come as parked polls are being let go.
INSISTED_S: Final = 1.0


def serve(settings: Settings, read: Callable[[], Settings]) -> int:
    """Run until SIGINT or SIGTERM and the drain after it; returns the exit status.

    read: the settings again, at each SIGHUP; raises SettingsError where they cannot be used.

    Raises:
        SettingsError: too few descriptors, a port that is taken, a log that cannot be written.
        StateError: the journal cannot be used.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    process_log = ProcessLog(settings.log)
    process_log.open()
    limit = raise_descriptor_limit()
    _require_descriptors(limit, settings)
    server = settings.server
    shown_host = f"[{server.host}]" if ":" in server.host else server.host
    try:
        listeners = Listeners(server.host, server.port, server.backlog)
    except (OSError, UnicodeError) as error:  # of a name that no name can be: a..b
        reason = error.strerror if isinstance(error, OSError) else error
        problem = f"cannot listen on {shown_host}:{server.port}: {reason}"
        raise SettingsError([problem]) from error
    settings = _with_folder(settings)

    def again() -> Settings:
        settings = read()
        _require_descriptors(limit, settings)
        return _with_folder(settings)

    try:
        as_json = settings.log.format == "json"
        gateway = Standalone(settings, signals=False, say_stall=_say if as_json else None)
        gateway.told(process_log)
    except BaseException:
        listeners.close()
        raise
    warn_of_short_queue(server.backlog)
    gc.set_threshold(*GC_THRESHOLDS)
    # For a signal that comes before uvicorn has handlers of its own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runner = Server(gateway, listeners, limit, shown_host, again)
    try:
        runner.run()
    except KeyboardInterrupt:
        return 0
    return 0 if runner.started else 1


def _require_descriptors(limit: int, settings: Settings) -> None:
    """Raises SettingsError where so many are too few."""
    connections = settings.upstream.max_connections
    needed = connections + RESERVED_DESCRIPTORS
    if limit < needed:
        problem = (
            f"{limit} descriptors are allowed, upstream.max_connections = {connections} needs"
            f" {needed} at least: raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower the"
            " setting"
        )
        raise SettingsError([problem])


def _with_folder(settings: Settings) -> Settings:
    """With the state folder of the address where none is given."""
    server = settings.server
    if settings.state.dir is not None or server.port == 0:
        # A port that was picked at random cannot be come back to, so nothing is kept for it.
        return settings
    folder = default_state_dir(server.host, server.port)
    return replace(settings, state=replace(settings.state, dir=str(folder)))


def _say(text: str) -> None:
    log.error("%s", text)


def _connections(descriptors: int, settings: Settings) -> int:
    """How many connections clients may have: an upstream is connected to whatever they do."""
    left = descriptors - settings.upstream.max_connections - OWN_DESCRIPTORS
    # What is passed on to a trainer takes one more for each.
    return left // 2 if settings.training.url is not None else left


class Server(uvicorn.Server):
    """Says on stdout when it accepts; at a signal it drains, and at the end of that it ends."""

    def __init__(
        self,
        gateway: Standalone,
        listeners: Listeners,
        descriptors: int,
        shown_host: str,
        read: Callable[[], Settings],
    ) -> None:
        """descriptors: how many the process may have. read: the settings again, at SIGHUP."""
        settings = gateway.settings
        self._door = FrontDoor(
            settings.limits,
            keepalive_s=settings.server.keepalive_s,
            connections=settings.limits.connections or sys.maxsize,
            metrics=gateway.metrics,
            refused_name=names.refused if (names := own_names(settings)) is not None else None,
        )
        super().__init__(
            uvicorn.Config(
                gateway,
                loop="uvloop",
                http=_protocol(self._door, self._connected),
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                server_header=False,
                # Only a trainer is told who called; wrapped around every request it is 3% of the
                # CPU.
                proxy_headers=settings.training.url is not None,
            )
        )
        self._gateway = gateway
        self._listeners = listeners
        self._descriptors = descriptors
        self._limit = Limit(_connections(descriptors, settings))
        self._read = read
        self._reading: asyncio.Task[None] | None = None
        self._read_once_more = False
        self._shown_host = shown_host
        self._clock = SystemClock()
        self._cannot_accept = False
        self._loop: asyncio.AbstractEventLoop | None = None

        gateway.told(self)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        gc.collect()  # before the gateway opens: its pauses are those of serving
        await super().startup([])
        if not self.started:
            return
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        gc.freeze()  # what is imported and built by now stays
        await self._listeners.accept(self._new_protocol)
        sys.stdout.write(
            f"asgi-gateway listening on http://{self._shown_host}:{self._listeners.port}\n"
        )
        sys.stdout.flush()

    # --- SIGHUP ----------------------------------------------------------------------------------

    def _reload(self) -> None:
        if self._reading is not None:
            self._read_once_more = True  # the file may have been read before it changed
            return
        self._reading = asyncio.create_task(self._gateway.read_again(self._read))
        self._reading.add_done_callback(self._reloaded)

    def _reloaded(self, _: object) -> None:
        self._reading = None
        if self._read_once_more:
            self._read_once_more = False
            self._reload()

    def reconfigure(self, settings: Settings) -> None:
        """How many clients may come, and how long each is waited for."""
        limits = settings.limits
        self._limit = Limit(_connections(self._descriptors, settings))
        self._door.reconfigure(limits, limits.connections or sys.maxsize)

    # --- connections -----------------------------------------------------------------------------

    def _new_protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    # --- too many clients ------------------------------------------------------------------------

    def _connected(self) -> None:
        """A connection more."""
        count = len(self.server_state.connections)
        if self._limit.reached(count) and self._listeners.accepting:
            self._listeners.pause()
            self._gateway.descriptors.full(count, self._clock.now())

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's own ticker, ten times a second."""
        if (
            not self._listeners.accepting
            and not self.should_exit
            and self._limit.has_room(len(self.server_state.connections))
        ):
            try:
                await self._listeners.accept(self._new_protocol)
            except OSError as error:  # no descriptor left, say: again at the next tick
                self._listeners.pause()
                if not self._cannot_accept:
                    log.warning("cannot accept connections yet: %s", error)
                self._cannot_accept = True
            else:
                self._cannot_accept = False
                self._gateway.descriptors.room()
        return await super().on_tick(counter)

    # --- the end ---------------------------------------------------------------------------------

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """SIGTERM or SIGINT. None is raised once more at the end: stopping is no failure."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._signalled)

    def _signalled(self) -> None:
        assert self._loop is not None
        if self.should_exit:  # drained
            self._loop.call_later(INSISTED_S, self._hang_up)
        else:
            self._gateway.drain(self._drained)

    def _drained(self) -> None:
        assert self._loop is not None
        self._listeners.close()
        self.should_exit = True
        self._loop.call_later(FINISH_S, self._hang_up)

    def _hang_up(self) -> None:
        """On those who do not take their answers, and on what is still waited for to answer them:
        uvicorn waits for its tasks without an end."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        # After the connections: what a cancelled task would say goes nowhere.
        logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
        for task in list(self.server_state.tasks):
            task.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._listeners.close()
        await super().shutdown(sockets)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or record.exc_info[0] is not asyncio.CancelledError


def _protocol(front: FrontDoor, connected: Callable[[], None]) -> type[GuardedProtocol]:
    class Protocol(GuardedProtocol):
        door = front

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            connected()

    return Protocol
