"""The stand-in vLLM: its routes, its counters, and who is waiting for what.

Completions are computed when they are due, not when they arrive, so what waits out a delay costs
a parsed request and a timer. The server runs on any asyncio loop; `serve` gives it uvloop's.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from loadgen.answers import MODEL, VOCAB
from loadgen.barrier import Barrier
from loadgen.body import answer
from loadgen.connection import Connection, Request
from loadgen.counts import Counts
from loadgen.errors import RequestError
from loadgen.faults import CANNED, Fault, damaged, fault_of
from loadgen.request import Job, Limits, check, read
from loadgen.tape import tape

LISTEN_BACKLOG: Final = 8192
"""Connections waiting to be accepted; Linux cuts it to net.core.somaxconn, 4096 by default."""

VERSION: Final = "0.32.0"
"""The vLLM whose answers are imitated."""


class Settings(NamedTuple):
    """How the stand-in behaves. Lengths in tokens, times in seconds.

    any_adapter: whether every unknown model name is an adapter that is found when first asked for,
    as with vLLM's filesystem resolver; such names are not listed.
    barrier: how many outstanding completions open the barrier, 0 where only `POST /release` does;
    None for no barrier.
    """

    host: str = "127.0.0.1"
    port: int = 8001
    models: tuple[str, ...] = (MODEL,)
    loras: tuple[str, ...] = ()
    any_adapter: bool = False
    max_model_len: int = 65_536
    vocab: int = VOCAB
    delay_s: float = 0.0
    keepalive_s: float = 5.0
    faults: bool = False
    fault_times: int | None = None
    barrier: int | None = None


class Work:
    """A completion on its way. Without a timer it will never be answered."""

    __slots__ = ("fault", "job", "request_id", "timer")

    def __init__(self, job: Job, request_id: str, fault: Fault | None) -> None:
        self.job = job
        self.request_id = request_id
        self.fault = fault
        self.timer: asyncio.TimerHandle | None = None


class Upstream:
    """One stand-in server. `start` listens, `stop` drops everything."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts = Counts()
        self._tape = tape(settings.vocab)
        self._limits = Limits(
            (*settings.models, *settings.loras),
            settings.max_model_len,
            settings.vocab,
            settings.any_adapter,
        )
        self._connections: set[Connection] = set()
        self._all_lost = asyncio.Event()
        # One constant lifetime, so the order of entry is the order of expiry.
        self._idle_until: dict[Connection, float] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._faulted: dict[bytes, int] = {}
        self._barrier: Barrier[Connection] | None = None
        self._routes: dict[bytes, tuple[bytes, Callable[[Connection, Request], None]]] = {
            b"/v1/completions": (b"POST", self._completions),
            b"/v1/models": (b"GET", self._models),
            b"/health": (b"GET", self._health),
            b"/version": (b"GET", self._version),
            b"/metrics": (b"GET", self._metrics),
            b"/requests": (b"GET", self._requests),
        }
        if settings.barrier is not None:
            self._barrier = Barrier(settings.barrier)
            self._routes[b"/release"] = (b"POST", self._release)
            self._routes[b"/hold"] = (b"POST", self._hold)
        self._started_at = int(time.time())

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
        self._server = await self._loop.create_server(
            lambda: Connection(self),
            self.settings.host,
            self.settings.port,
            backlog=LISTEN_BACKLOG,
        )
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and abort every connection."""
        self._server.close()
        self._all_lost.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in list(self._connections):
            connection.abort()
        await self._server.wait_closed()
        if self._connections:
            await self._all_lost.wait()

    @property
    def url(self) -> str:
        host = self.settings.host
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
        self._idle_until.pop(connection, None)
        self.counts.connections -= 1
        work = connection.work
        if isinstance(work, Work):
            connection.work = None
            if work.timer is not None:
                work.timer.cancel()
            if self._barrier is not None:
                self._barrier.leave(connection)
            self.counts.running -= 1
            self.counts.aborted += 1

    def busy(self, connection: Connection) -> None:
        self._idle_until.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Start the keep-alive clock, which like vLLM's begins with the first answer."""
        deadline = self._loop.time() + self.settings.keepalive_s
        self._idle_until[connection] = deadline
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_at(deadline, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        now = self._loop.time()
        due = []
        for connection, deadline in self._idle_until.items():
            if deadline > now:
                self._idle_timer = self._loop.call_at(deadline, self._close_idle)
                break
            due.append(connection)
        for connection in due:
            del self._idle_until[connection]
            connection.drop()

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

    def _completions(self, connection: Connection, request: Request) -> None:
        if request.request_id is not None:
            self.counts.saw(request.request_id)
        try:
            job = check(read(request.body, request.content_type), self._limits)
        except RequestError as error:
            self.counts.statuses[error.status] += 1
            connection.respond(error.status, error.body())
            return
        fault = self._fault(job) if self.settings.faults else None
        request_id = request.request_id or job.asked.request_id or secrets.token_hex(8)
        connection.work = work = Work(job, request_id, fault)
        self.counts.started()
        if fault is Fault.SILENT:
            self.counts.faults[fault] += 1
        elif self._barrier is not None and self._barrier.shut:
            self._let_go(self._barrier.hold(connection))
        elif self.settings.delay_s > 0:
            work.timer = self._loop.call_later(self.settings.delay_s, self._due, connection, work)
        else:
            self._finish(connection, work)

    def _fault(self, job: Job) -> Fault | None:
        fault = fault_of(job.prompts[0][0], self.settings.vocab)
        times = self.settings.fault_times
        if fault is None or times is None:
            return fault
        key = blake2b(msgspec.json.encode(job.prompts), digest_size=16).digest()
        given = self._faulted.get(key, 0)
        if given >= times:
            return None
        self._faulted[key] = given + 1
        return fault

    def _let_go(self, connections: Iterable[Connection]) -> None:
        """Have what waited at the barrier answered, after the delay where there is one."""
        for connection in connections:
            if isinstance(connection.work, Work):
                connection.work.timer = self._loop.call_later(
                    self.settings.delay_s, self._due, connection, connection.work
                )

    def _release(self, connection: Connection, _: Request) -> None:
        if self._barrier is not None:
            self._let_go(self._barrier.release())
        connection.respond(200, b"{}")

    def _hold(self, connection: Connection, _: Request) -> None:
        if self._barrier is not None:
            self._barrier.hold_again()
        connection.respond(200, b"{}")

    def _due(self, connection: Connection, work: Work) -> None:
        self._finish(connection, work)
        connection.advance()

    def _finish(self, connection: Connection, work: Work) -> None:
        """The one end of a completion that was not aborted."""
        connection.work = None
        counts = self.counts
        counts.running -= 1
        fault = work.fault
        created = int(time.time())
        if fault is None:
            made = answer(work.job, self._tape, request_id=work.request_id, created=created)
            counts.statuses[200] += 1
            counts.prompt_tokens += made.prompt_tokens
            counts.generation_tokens += made.generated
            connection.respond(200, made.body)
            return
        counts.faults[fault] += 1
        if fault in CANNED:
            canned = CANNED[fault]
            counts.statuses[canned.status] += 1
            connection.respond(canned.status, canned.body, canned.content_type, canned.headers)
        elif fault is Fault.CLOSE_BEFORE:
            connection.drop()
        else:
            made = damaged(work.job, self._tape, fault, request_id=work.request_id, created=created)
            counts.prompt_tokens += made.prompt_tokens
            counts.generation_tokens += made.generated
            if fault is Fault.CLOSE_MIDWAY:
                connection.respond_half(200, made.body)
            else:
                counts.statuses[200] += 1
                connection.respond(200, made.body)

    def _models(self, connection: Connection, _: Request) -> None:
        bases = [self._card(name, None) for name in self.settings.models]
        loras = [self._card(name, self.settings.models[0]) for name in self.settings.loras]
        connection.respond(200, msgspec.json.encode({"object": "list", "data": bases + loras}))

    def _card(self, name: str, parent: str | None) -> dict[str, object]:
        permission = {
            "id": f"modelperm-{blake2b(name.encode(), digest_size=8).hexdigest()}",
            "object": "model_permission",
            "created": self._started_at,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": self._started_at,
            "owned_by": "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": self.settings.max_model_len if parent is None else None,
            "permission": [permission],
        }

    def _health(self, connection: Connection, _: Request) -> None:
        connection.respond(200, b"", "")

    def _version(self, connection: Connection, _: Request) -> None:
        connection.respond(200, msgspec.json.encode({"version": VERSION}))

    def _metrics(self, connection: Connection, _: Request) -> None:
        text = self.counts.exposition(self.settings.models[0])
        connection.respond(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _requests(self, connection: Connection, _: Request) -> None:
        connection.respond(200, msgspec.json.encode(dict(self.counts.request_ids)))


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Upstream]:
    """A stand-in on the current loop, for tests; port 0 picks a free one."""
    upstream = Upstream(settings)
    await upstream.start()
    try:
        yield upstream
    finally:
        await upstream.stop()


class ListenError(Exception):
    """The address cannot be had."""


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. The first line on stdout says that it accepts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    upstream = Upstream(settings)
    upstream.warm()
    try:
        await upstream.start()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ListenError(f"cannot listen on {settings.host}:{settings.port}: {reason}") from error
    print(f"loadgen upstream listening on {upstream.url}", flush=True)
    await stopping.wait()
    await upstream.stop()
