"""The stand-in vLLM: its connections, its counters, and who is waiting for what.

Completions are computed when they are due, not when they arrive, so what waits out a delay costs
a parsed request and a timer. The server runs on any asyncio loop; `serving` gives it uvloop's.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from loadgen import lengths
from loadgen.barrier import Barrier
from loadgen.body import Style, answer
from loadgen.connection import Connection, Request
from loadgen.control import Control
from loadgen.counts import Counts, Hit
from loadgen.errors import RequestError
from loadgen.faults import Fault
from loadgen.faulty import Faulty
from loadgen.keepalive import KeepAlive
from loadgen.listening import Listener
from loadgen.peers import Peers
from loadgen.request import Job, Limits, check, prompt_digest, read
from loadgen.scheduler import Scheduler
from loadgen.script import Injection
from loadgen.settings import Settings
from loadgen.tape import tape


class Work:
    """A completion on its way. Without a timer it waits for others, or is never answered."""

    __slots__ = ("hit", "injection", "job", "request_id", "timer")

    def __init__(
        self, job: Job, request_id: str, injection: Injection | None, hit: Hit | None
    ) -> None:
        self.hit = hit
        self.job = job
        self.request_id = request_id
        self.injection = injection
        self.timer: asyncio.TimerHandle | None = None


class Upstream:
    """One stand-in server. `start` listens, `stop` drops everything."""

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError where a spec among the settings is wrong."""
        self.settings = settings
        self.counts = Counts(settings.ids_kept)
        self._tape = tape(settings.vocab)
        self._limits = Limits(
            (*settings.models, *settings.loras),
            settings.max_model_len,
            settings.vocab,
            settings.any_adapter,
        )
        dist = settings.tokens_dist
        drawn = None if dist is None else lengths.parse(dist, seed=settings.seed)
        self._style = Style(settings.lean, drawn)
        self._random = Random(settings.seed)
        self._scheduler: Scheduler[Connection] | None = None
        if settings.max_num_seqs is not None:
            self._scheduler = Scheduler(settings.max_num_seqs)
        self._barrier: Barrier[Connection] | None = None
        if settings.barrier is not None:
            self._barrier = Barrier(settings.barrier)
        self._connections: set[Connection] = set()
        self._all_lost = asyncio.Event()
        self._keep_alive = KeepAlive(settings.keepalive_s)
        self._peers: Peers | None = None
        self._listener = Listener(lambda: Connection(self), settings.hosts, settings.port)
        self._control = Control(settings, self.command)
        self._faulty = Faulty(
            settings, self.counts, self._tape, self._style, tell=self._control.tell
        )
        self._routes = self._control.routes | {b"/v1/completions": (b"POST", self._completions)}

    def __repr__(self) -> str:
        return f"<Upstream connections={len(self._connections)} {self.counts!r}>"

    def warm(self) -> None:
        """Render the tape now rather than in the first requests, and keep it out of collections."""
        self._tape.render()
        gc.collect()
        gc.freeze()

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be had."""
        self._loop = asyncio.get_running_loop()
        await self._listener.start(shared=self._peers is not None)

    async def join(self, directory: Path, index: int, count: int) -> None:
        """Be one of several processes on this port; before `start`."""
        peers = Peers(directory, index, count, self.command)
        await peers.start()
        self._peers = self._control.peers = self._faulty.peers = peers
        if self.settings.barrier is not None:
            self._barrier = Barrier(0)  # the board says when all have come

    async def stop(self) -> None:
        """Stop listening and abort every connection."""
        servers = self._listener.stop()
        self._all_lost.clear()
        self._keep_alive.stop()
        self._faulty.stop()
        for connection in list(self._connections):
            connection.abort()
        for server in servers:
            await server.wait_closed()
        if self._connections:
            await self._all_lost.wait()
        if self._peers is not None:
            await self._peers.stop()

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        host = self.settings.hosts[0]
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self.counts.connections += 1
        self.counts.connections_total += 1

    def lost(self, connection: Connection) -> None:
        """Forget a connection; work it was waiting for is aborted."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_lost.set()
        self._keep_alive.remove(connection)
        self.counts.connections -= 1
        work = connection.work
        if isinstance(work, Work):
            connection.work = None
            if work.timer is not None:
                work.timer.cancel()
            if self._barrier is not None:
                self._barrier.leave(connection)
                self._tell_held()
            self._leave(connection)
            self.counts.running -= 1
            self.counts.aborted += 1

    def busy(self, connection: Connection) -> None:
        self._keep_alive.remove(connection)

    def idle(self, connection: Connection) -> None:
        """Start the keep-alive clock, which like vLLM's begins with the first answer."""
        if self._listener.shut:
            connection.drop()
        else:
            self._keep_alive.add(connection, self._loop)

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer a request or arrange for it."""
        route = self._routes.get(request.path)
        if route is None:
            connection.respond(404, b'{"detail":"Not Found"}')
            return
        method, handler = route
        if request.method != method:
            connection.respond(
                405,
                b'{"detail":"Method Not Allowed"}',
                headers=(("allow", method.decode()),),
            )
            return
        handler(connection, request)

    def command(self, command: str) -> bytes:
        """Do in this process what was asked of all of them."""
        name, _, value = command.partition(" ")
        match name:
            case "counts":
                held = 0 if self._barrier is None else len(self._barrier)
                queued = 0 if self._scheduler is None else len(self._scheduler)
                return msgspec.json.encode(self.counts.counted(held=held, queued=queued))
            case "hits" | "faulted" | "sessions":
                return msgspec.json.encode(dict(getattr(self.counts, name)))
            case "release" if self._barrier is not None:
                self._let_go(self._barrier.release())
                self._tell_held()
            case "hold" if self._barrier is not None:
                self._barrier.hold_again()
            case "refuse":
                self._refuse(float(value))
            case "began":
                self._faulty.plan(float(value))
        return b"{}"

    def _completions(self, connection: Connection, request: Request) -> None:
        hit = None
        by_prompt = self.settings.hits == "prompt"
        if request.request_id is not None and not by_prompt:
            hit = self.counts.saw(request.request_id, request.affinity)
        try:
            job = check(read(request.body, request.content_type), self._limits)
        except RequestError as error:
            self.counts.statuses[error.status] += 1
            connection.respond(error.status, error.body())
            return
        if by_prompt:
            hit = self.counts.saw(prompt_digest(job.prompts[0]))
        injection = self._faulty.pick(job) if self._faulty.active else None
        request_id = request.request_id or job.asked.request_id or secrets.token_hex(8)
        connection.work = work = Work(job, request_id, injection, hit)
        self.counts.started()
        if injection is not None and injection.fault is Fault.SILENT:
            self.counts.gave(Fault.SILENT, request_id)
        elif self._barrier is not None and self._barrier.shut:
            self._hold(self._barrier, connection)
        elif self._admitted(connection, work):
            if self.settings.delay_s > 0:
                self._start(connection, work)
            else:
                self._finish(connection, work)

    # --- waiting --------------------------------------------------------------------------------

    def _hold(self, barrier: Barrier[Connection], connection: Connection) -> None:
        self._let_go(barrier.hold(connection))
        if self._tell_held() and self.settings.barrier and barrier.shut:
            assert self._peers is not None
            if self._peers.holds(len(barrier)) >= self.settings.barrier:
                self.command("release")
                self._control.tell("release")

    def _tell_held(self) -> bool:
        """Whether others are told how many wait at the barrier here."""
        if self._peers is None or self._barrier is None:
            return False
        self._peers.holds(len(self._barrier))
        return True

    def _let_go(self, connections: Iterable[Connection]) -> None:
        """Have what waited at the barrier generated, in line where there is one."""
        for connection in connections:
            work = connection.work
            if isinstance(work, Work) and self._admitted(connection, work):
                self._start(connection, work)

    def _admitted(self, connection: Connection, work: Work) -> bool:
        if self._scheduler is None:
            return True
        return self._scheduler.enter(connection, len(work.job.prompts) * work.job.asked.n)

    def _start(self, connection: Connection, work: Work) -> None:
        delay_s = self.settings.delay_s
        if self.settings.jitter:
            delay_s *= 1 + self.settings.jitter * (2 * self._random.random() - 1)
        work.timer = self._loop.call_later(delay_s, self._due, connection, work)

    def _leave(self, connection: Connection) -> None:
        """Make room for those in line."""
        if self._scheduler is not None:
            for following in self._scheduler.leave(connection):
                if isinstance(following.work, Work):
                    self._start(following, following.work)

    def _due(self, connection: Connection, work: Work) -> None:
        self._finish(connection, work)
        connection.advance()

    def _refuse(self, seconds: float) -> None:
        """Have new connections refused for so long, and idle ones find that out."""
        self._listener.refuse(seconds)
        self._keep_alive.close_all()

    # --- answers --------------------------------------------------------------------------------

    def _finish(self, connection: Connection, work: Work) -> None:
        """The one end of a completion that was not aborted."""
        connection.work = None
        counts = self.counts
        counts.running -= 1
        if work.hit is not None:
            work.hit[2] = time.monotonic()
        self._leave(connection)
        if work.injection is not None:
            self._faulty.give(connection, work.job, work.injection, request_id=work.request_id)
            return
        made = answer(
            work.job,
            self._tape,
            self._style,
            request_id=work.request_id,
            created=int(time.time()),
        )
        counts.statuses[200] += 1
        counts.prompt_tokens += made.prompt_tokens
        counts.generation_tokens += made.generated
        connection.respond(200, made.body)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Upstream]:
    """A stand-in on the current loop, for tests; port 0 picks a free one."""
    upstream = Upstream(settings)
    await upstream.start()
    try:
        yield upstream
    finally:
        await upstream.stop()
