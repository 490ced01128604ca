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

from asgi_gateway.access.visited import own_names
from asgi_gateway.clock import SystemClock
from asgi_gateway.configuration import with_state_folder
from asgi_gateway.descriptors import (
    client_connections,
    raise_descriptor_limit,
    require_descriptors,
)
from asgi_gateway.frontdoor import FrontDoor
from asgi_gateway.listeners import (
    Limit,
    Listeners,
    listening,
    say_listening,
    warn_of_short_queue,
)
from asgi_gateway.processlog import ProcessLog
from asgi_gateway.served import protocol_of
from asgi_gateway.settings import Settings, SettingsError
from asgi_gateway.standalone import Standalone
from asgi_gateway.workers.member import Member
from asgi_gateway.workers.told import Told

log = logging.getLogger(__name__)

# Next to nothing here is cyclic, and collecting with the interpreter's own thresholds took 38% of
# the CPU of a burst, in pauses of up to 0.2 s: thousands of requests in flight are young objects
# that survive, and each full pass walks all of them.
GC_THRESHOLDS: Final = (10_000, 20, 100)
# Answers under way when the drain is over are finished for so long; a client that reads none of
# them holds nothing up, nor does a trainer or an upstream that does not answer.
FINISH_S: Final = 10.0
# And for so long after one signal more, which may come as parked polls are being let go.
INSISTED_S: Final = 1.0
# Beyond all that, one whose supervisor is gone may take so long and is killed then.
ALONE_S: Final = 10


def serve(settings: Settings, read: Callable[[], Settings], told: Told | None = None) -> int:
    """Run until SIGINT or SIGTERM and the drain after it; returns the exit status.

    read: the settings again, at each SIGHUP; raises SettingsError where they cannot be used.
    told: as one of several processes, by their supervisor.

    Raises:
        SettingsError: too few descriptors, a port that is taken, a log that cannot be written.
        StateError: the journal cannot be used.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    if told is not None:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # it is the supervisor's
    process_log = ProcessLog(settings.log, told.slot if told is not None else None)
    process_log.open()
    limit = raise_descriptor_limit()

    def ours(settings: Settings) -> Settings:
        require_descriptors(limit, settings)
        settings = with_state_folder(settings)
        return told.own(settings) if told is not None else settings

    settings = ours(settings)
    server = settings.server
    if told is None:
        listeners = Listeners(listening(server), server.backlog)
    else:
        given = socket.socket(fileno=told.listener)
        given.set_inheritable(False)
        listeners = Listeners(given, server.backlog, told.count)

    try:
        as_json = settings.log.format == "json"
        gateway = Standalone(settings, signals=False, say_stall=_say if as_json else None)
        gateway.told(process_log)
        member = Member(told, gateway) if told is not None else None
    except BaseException:
        listeners.close()
        raise
    if told is None:
        warn_of_short_queue(server.backlog)
    gc.set_threshold(*GC_THRESHOLDS)
    # For a signal that comes before uvicorn has handlers of its own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runner = Server(gateway, listeners, limit, lambda: ours(read()), member)
    try:
        runner.run()
    except KeyboardInterrupt:
        return 0
    finally:
        if member is not None:
            member.leave_counts()
    if runner.refused is not None:
        raise runner.refused
    return 0 if runner.started else 1


def _say(text: str) -> None:
    log.error("%s", text)


class Server(uvicorn.Server):
    """Says on stdout when it accepts; at a signal it drains, and at the end of that it ends."""

    def __init__(
        self,
        gateway: Standalone,
        listeners: Listeners,
        descriptors: int,
        read: Callable[[], Settings],
        member: Member | None = None,
    ) -> None:
        """descriptors: how many the process may have. read: the settings again, at SIGHUP.
        member: in one of several processes."""
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
                http=protocol_of(self._door, self._connected),
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
        self._limit = Limit(client_connections(descriptors, settings))
        self._read = read
        # Why it did not start.
        self.refused: SettingsError | None = None
        self._reading: asyncio.Task[None] | None = None
        self._read_once_more = False
        self._member = member
        self._told_to_stop = self._leaving = False
        self._clock = SystemClock()
        self._cannot_accept = False
        self._loop: asyncio.AbstractEventLoop | None = None

        gateway.told(self)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        gc.collect()  # before the gateway opens: its pauses are those of serving
        try:
            await self._gateway.open()
        except SettingsError as error:  # of what only a look outside can tell
            self.refused, self.should_exit = error, True
            return
        except Exception as error:  # noqa: BLE001 - the lifespan tries again, and says it
            log.debug("cannot open: %r", error)
        await super().startup([])
        if not self.started:
            return
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self.reload)
        gc.freeze()  # what is imported and built by now stays
        await self._listeners.accept(self._new_protocol)
        if self._member is None:
            say_listening(self._gateway.settings.server.host, self._listeners.port)
        else:
            await self._member.open(self)
            self._member.accepts()

    # --- SIGHUP ----------------------------------------------------------------------------------

    def reload(self) -> None:
        """Read the settings again."""
        if self._reading is not None:
            self._read_once_more = True  # the file may have been read before it changed
            return
        self._reading = asyncio.create_task(self._gateway.read_again(self._read))
        self._reading.add_done_callback(self._reloaded)

    def _reloaded(self, _: object) -> None:
        self._reading = None
        if self._read_once_more:
            self._read_once_more = False
            self.reload()

    def reconfigure(self, settings: Settings) -> None:
        """How many clients may come, and how long each is waited for."""
        limits = settings.limits
        self._limit = Limit(client_connections(self._descriptors, settings))
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
            and not self._leaving
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
        if self._member is not None and self._member.has_supervisor:
            # Where all processes get the signal this is no second one: that is told.
            self.begin_to_stop()
        else:
            self._stop()

    def begin_to_stop(self) -> None:
        """Drain, however often it is told."""
        if not self._told_to_stop:
            self._stop()

    def stop_now(self) -> None:
        """Come to the end of the drain."""
        self.begin_to_stop()
        self._stop()

    def leave(self) -> None:
        """Drain, and have the clients go to the other processes."""
        self._leaving = True
        self._listeners.pause()
        self._gateway.leave()
        self.begin_to_stop()

    def orphaned(self) -> None:
        """There is no supervisor any more. Whatever keeps the process from its end, it ends."""
        log.error("the supervisor is gone, so this process drains and ends")
        drain = self._gateway.settings.drain
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(drain.predrain_s + drain.grace_s + FINISH_S) + ALONE_S)
        self.begin_to_stop()

    def _stop(self) -> None:
        assert self._loop is not None
        self._told_to_stop = True
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
        if self._member is not None:
            self._member.close()


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or record.exc_info[0] is not asyncio.CancelledError
