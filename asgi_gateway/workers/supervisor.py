"""`asgi-gateway serve --workers N`: the process that starts the others and serves nothing itself.

| signal          | what it does                                                              |
|-----------------|---------------------------------------------------------------------------|
| SIGTERM, SIGINT | all workers drain, and it ends with the last; a second one ends the drain |
| SIGHUP          | each reads the settings again                                             |
| SIGUSR2         | one after the other is replaced by a new process                          |

Without it the workers read the end of their connection, drain and end.
"""

import contextlib
import logging
import secrets
import selectors
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from asgi_gateway.clock import SystemClock
from asgi_gateway.configuration import ENVIRONMENT_PREFIX, environment_with, with_state_folder
from asgi_gateway.descriptors import raise_descriptor_limit, require_descriptors
from asgi_gateway.listeners import listening, say_listening, warn_of_short_queue
from asgi_gateway.processlog import ProcessLog
from asgi_gateway.settings import MEMORY, Settings, SettingsError
from asgi_gateway.state.directory import unusable
from asgi_gateway.state.key import load_key
from asgi_gateway.workers import told
from asgi_gateway.workers.folder import Folder
from asgi_gateway.workers.roll import Roll
from asgi_gateway.workers.worker import Seat, Worker

log = logging.getLogger(__name__)

SIGNALS: Final = (*(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD),)
_KEY_BYTES: Final = 32


def supervise(
    settings: Settings, command: Sequence[str], read: Callable[[], Settings] | None = None
) -> int:
    """Run `server.workers` processes until SIGINT or SIGTERM and their drains; returns the exit
    status: of one that could not even start, if any.

    command: starts a worker, with what it is told behind. read: the settings again, at SIGHUP.

    Raises:
        SettingsError: too few descriptors, a port that is taken, no folder for temporary files.
        StateError: the state folder cannot be used.
    """
    process_log = ProcessLog(settings.log)
    process_log.open()
    require_descriptors(raise_descriptor_limit(), settings)
    settings = with_state_folder(settings)
    key = _key(settings)
    with listening(settings.server) as listener:
        warn_of_short_queue(settings.server.backlog)
        folder = Folder.made()
        try:
            return Supervisor(
                settings, command, environment_with(key), listener, folder, process_log, read
            ).run()
        finally:
            folder.remove()


def _key(settings: Settings) -> dict[str, str]:
    """Ids of each are known to the others: their key as a variable, where none is set and none is
    in a store that they share."""
    if settings.id_key is not None or settings.store.url != MEMORY:
        return {}
    if settings.state.dir:
        folder = Path(settings.state.dir)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as fault:
            raise unusable(folder, fault) from fault
        key = load_key(folder)
    else:
        key = secrets.token_hex(_KEY_BYTES)
    return {f"{ENVIRONMENT_PREFIX}ID_KEY": key}


class Supervisor:
    def __init__(
        self,
        settings: Settings,
        command: Sequence[str],
        environment: dict[str, str],
        listener: socket.socket,
        folder: Folder,
        process_log: ProcessLog,
        read: Callable[[], Settings] | None,
    ) -> None:
        self._settings = settings
        self._command = command
        self._environment = environment
        self._listener = listener
        self._folder = folder
        self._process_log = process_log
        self._read = read
        self._clock = SystemClock()
        server, state = settings.server, settings.state
        self._seats = [Seat(slot) for slot in told.slots(state.dir, server.workers)]
        # All that are not gone, those that leave included.
        self._workers: list[Worker] = []
        self._serial = 0
        self._said_listening = False
        self._stopping = False
        self._status = 0
        self._roll: Roll | None = None
        self._roll_asked = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()

    def __repr__(self) -> str:
        return f"<Supervisor of {len(self._workers)}>"

    def run(self) -> int:
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        before = {number: signal.signal(number, _noted) for number in SIGNALS}
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        try:
            for seat in self._seats:
                seat.due_at = self._clock.now()
            while self._workers or not self._stopping:
                self._turn()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            for opened in (self._selector, self._woken, self._wake):
                opened.close()
        return self._status

    def _turn(self) -> None:
        if not self._stopping:
            self._fill()
        self._selector.select(self._patience_s())
        for number in self._signals():
            self._signalled(number)
        for worker in list(self._workers):
            for word in worker.words():
                self._heard(worker, word)
            if worker.silent:
                self._unwatch(worker)
            if worker.ended():
                self._gone(worker)
        if not self._stopping:
            self._go_on()

    def _patience_s(self) -> float | None:
        """How long nothing is to be done but by what happens."""
        if self._stopping:
            return None if self._workers else 0.0
        times = [seat.due_at for seat in self._seats]
        if self._roll is not None:
            times.append(self._roll.deadline())
        due = [at for at in times if at is not None]
        return max(0.0, min(due) - self._clock.now()) if due else None

    # --- signals ---------------------------------------------------------------------------------

    def _signals(self) -> bytes:
        """Their numbers, in the order of their coming."""
        try:
            return self._woken.recv(4096)
        except BlockingIOError:
            return b""

    def _signalled(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._stop(told.STOP if self._stopping else told.DRAIN)
        elif number == signal.SIGHUP:
            self._reload()
        elif number == signal.SIGUSR2:
            self._roll_asked = True

    def _stop(self, word: bytes) -> None:
        self._stopping = True
        self._roll = None
        for worker in self._workers:
            worker.end(word)

    def _reload(self) -> None:
        for worker in self._workers:
            worker.tell(told.RELOAD)
        if self._read is not None:
            with contextlib.suppress(SettingsError):  # the workers say what is wrong
                self._process_log.reconfigure(self._read())

    # --- workers ---------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Start what is due."""
        now = self._clock.now()
        for seat in self._seats:
            if seat.due_at is not None and seat.due_at <= now:
                used = {worker.slot for worker in self._workers}
                slot = seat.slot if seat.slot not in used else self._free_slot()
                try:
                    seat.taken(self._start(slot))
                except OSError as error:
                    self._not_started(seat, error)
                    if not self._said_listening:
                        return

    def _not_started(self, seat: Seat, error: OSError) -> None:
        """The system has no process for it now."""
        if self._said_listening:
            delay_s = seat.died(0.0, self._clock.now())
            log.error("worker %d cannot be started: %s; again in %g s", seat.slot, error, delay_s)
        else:
            log.error("worker %d cannot be started: %s", seat.slot, error)
            self._status = 1
            self._stop(told.DRAIN)

    def _start(self, slot: int) -> Worker:
        self._serial += 1
        worker = Worker(
            self._command,
            self._environment,
            self._listener,
            self._clock.now(),
            slot=slot,
            serial=self._serial,
            count=len(self._seats),
            folder=str(self._folder.path),
        )
        self._workers.append(worker)
        self._selector.register(worker.control, selectors.EVENT_READ)
        return worker

    def _start_further(self) -> Worker:
        return self._start(self._free_slot())

    def _free_slot(self) -> int:
        """A journal of which there is no owner, nor will be by itself."""
        used = {worker.slot for worker in self._workers}
        waiting = {seat.slot for seat in self._seats if seat.worker is None}
        return told.lowest_free(used | waiting)

    def _heard(self, worker: Worker, word: bytes) -> None:
        if word == told.ACCEPTING:
            worker.accepts = True
        elif word == told.END_ALL and not self._stopping:
            self._stop(told.DRAIN)

    def _unwatch(self, worker: Worker) -> None:
        if worker.control in self._selector.get_map():
            self._selector.unregister(worker.control)

    def _gone(self, worker: Worker) -> None:
        self._workers.remove(worker)
        self._unwatch(worker)
        worker.control.close()
        self._folder.bury(worker.serial, told=worker.told)
        if self._stopping:
            if not worker.clean and self._status == 0:
                log.warning("worker %d (process %d) %s", worker.slot, worker.pid, worker.how())
                self._status = 1
            return
        seat = next((seat for seat in self._seats if seat.worker is worker), None)
        if worker.told or seat is None:
            log.info("worker %d (process %d) has left", worker.slot, worker.pid)
            return
        said = f"worker {worker.slot} (process {worker.pid}) ended with {worker.how()}"
        if not self._said_listening and not worker.accepts:
            # What it lacks no other one has; it has said it itself.
            log.info("%s", said)
            self._status = worker.status if worker.status is not None and worker.status > 0 else 1
            self._stop(told.DRAIN)
            return
        now = self._clock.now()
        delay_s = seat.died(now - worker.started_at, now)
        if self._roll is not None and self._roll.fills(seat):
            seat.due_at = None
            log.warning("%s; another one is being started", said)
        elif delay_s:
            log.warning("%s; another one is started in %g s", said, delay_s)
        else:
            log.warning("%s; another one is started", said)

    # --- time ------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if not self._said_listening:
            if not all(seat.worker is not None and seat.worker.accepts for seat in self._seats):
                return
            self._said_listening = True
            say_listening(self._settings.server.host, self._listener.getsockname()[1])
        while self._roll is not None or self._roll_asked:
            if self._roll is None:
                self._roll_asked = False
                self._roll = Roll(self._seats, self._start_further)
            if self._roll.step(self._clock.now()):
                return
            self._roll = None


def _noted(number: int, frame: FrameType | None) -> None:
    """The number comes through the wake-up descriptor; without a handler none would."""
