"""Gateway: builds the parts, owns their lifetime, and is the ASGI application."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from asgi_gateway import gauges
from asgi_gateway.access.door import Door
from asgi_gateway.access.keys import is_configured
from asgi_gateway.admin.handlers import AdminHandlers
from asgi_gateway.admin.overview import Overviews, Parts
from asgi_gateway.admission import Admission
from asgi_gateway.allocator import Allocator, malloc_trim
from asgi_gateway.answering import answering
from asgi_gateway.asgi import App, Receive, Scope, Send, path_below_root
from asgi_gateway.clock import Clock, SystemClock
from asgi_gateway.drain import Drain, Left
from asgi_gateway.errors import Unready, Unsupported
from asgi_gateway.handlers import SamplingHandlers
from asgi_gateway.ids import Ids
from asgi_gateway.keeper import Keeper
from asgi_gateway.ledger import NOBODY, Ledger
from asgi_gateway.lifespan import InnerLifespan, serve_lifespan
from asgi_gateway.memory_watch import MemoryWatch, process_meter
from asgi_gateway.metrics import Metrics
from asgi_gateway.outputs import Outputs
from asgi_gateway.pauses import GcPauses, LoopLag
from asgi_gateway.reloads import Reloadable, Reloads
from asgi_gateway.rest import RestHandlers
from asgi_gateway.route import BEYOND
from asgi_gateway.routes import Table
from asgi_gateway.sampling import SWEEP_BUDGET, Sampling
from asgi_gateway.sessions import Sessions
from asgi_gateway.settings import Settings
from asgi_gateway.shareable import is_shared
from asgi_gateway.sharing import add_shared, sharing, sharing_handshake, store_of
from asgi_gateway.training.behind import what_is_behind
from asgi_gateway.training.handshake import TrainerHandshake
from asgi_gateway.training.proxy import Proxy
from asgi_gateway.upstream.catalog import Catalog
from asgi_gateway.upstream.client import Client
from asgi_gateway.upstream.exchange import Transport
from asgi_gateway.upstream.pool import Pool

log = logging.getLogger(__name__)

TICK_S: Final = 0.1


class Gateway(Reloadable):
    """An ASGI application; `inner` gets every path that the gateway does not own.

    Two gateways in one process share nothing. One gateway belongs to one event loop.
    """

    def __init__(
        self, settings: Settings, inner: App | None = None, *, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self._inner = inner
        self._clock = clock or SystemClock()
        keyed = is_configured(settings.access)
        self._door = Door(settings.access, self._clock) if keyed else None
        # What another application behind us answers is its own to guard.
        self._beyond = BEYOND if keyed and inner is None else None
        self._outputs = Outputs(settings, self._clock, self._model_of)
        self._keeper = (
            Keeper(Path(settings.state.dir), fsync=settings.state.fsync == "interval")
            if settings.state.dir and not is_shared(settings)  # which keeps more than a journal
            else None
        )
        ids = Ids(settings.id_key or (self._keeper.key if self._keeper else None))
        ledger: Ledger = self._keeper or NOBODY
        self.metrics, self._admission = Metrics(), Admission()
        self._metrics = self.metrics
        self._shared = sharing(settings, self._clock, ids, self._admission)
        began = self._keeper.begin(ids.epoch, self._clock.wall_time()) if self._keeper else 0
        self._store = store_of(settings, self._shared, ledger=ledger, cursor_base=began)
        given = settings.upstream
        self._client = Client(given)
        self._transport: Transport = (
            Pool(given, self._client.addresses) if given.transport == "httptools" else self._client
        )
        self._catalog = Catalog(self._client, settings.upstream.urls, settings.models, self._clock)
        self._drain = Drain(
            settings.drain, self._admission, lambda: Left.of(self._store), self.stop_holding
        )
        self._lag, self._pauses = LoopLag(TICK_S), GcPauses(self._clock)
        self._sampling = Sampling(
            settings=settings,
            clock=self._clock,
            store=self._store,
            transport=self._transport,
            ids=ids,
            metrics=self._metrics,
            admission=self._admission,
            ask_health=self._client.health,
            samplelog=self._outputs.samples,
            traces=self._outputs.traces,
            quota=self._door.quota if self._door is not None else None,
            shared=self._shared,
        )
        self.fleet = self._sampling.fleet
        self.fleet.moved.append(self._catalog.move)
        shed = self._sampling.shed
        self._memory = MemoryWatch(self._admission, self._metrics, shed, process_meter())
        clocks, most = settings.session, settings.limits.sessions_per_caller
        self._sessions = Sessions(clocks.timeout_s, clocks.retention_s, ids, ledger, most)
        if self._keeper is not None:
            self._keeper.restore(self._sessions, self._store, self._clock.now())
        if self._shared is not None:
            self._shared.join(self._sampling, self._sessions, settings)
            add_shared(self._metrics, self._shared)
        self._behind, self._trainer = what_is_behind(settings, inner, self._clock)
        parts: dict[str, Any] = {
            "clock": self._clock,
            "sampling": self._sampling,
            "sessions": self._sessions,
            "catalog": self._catalog,
            "metrics": self._metrics,
        }
        shared = {
            **parts,
            "admission": self._admission,
            "client": settings.client,
            "journaled": self._keeper is not None or self._shared is not None,
        }
        rest: dict[str, Any] = {name: parts[name] for name in ("sessions", "catalog")}
        rest["elsewhere"] = self._shared
        adopted = TrainerHandshake(self._trainer, **shared) if self._trainer else None
        handshake = adopted or sharing_handshake(self._shared, **shared)
        self._overviews = Overviews(
            Parts(
                settings=settings,
                clock=self._clock,
                store=self._store,
                sessions=self._sessions,
                metrics=self._metrics,
                admission=self._admission,
                recent=self._sampling.recent,
                lag=self._lag,
                fleet=self.fleet,
                drain=self._drain,
            )
        )
        self._table = Table(
            SamplingHandlers(
                **parts,
                inline_bytes=settings.poll.inline_bytes,
                behind=adopted,
                elsewhere=self._shared,
            ),
            handshake,
            settings,
            AdminHandlers(self._overviews, self.stop_process, self.drain_upstream),
            rest=None if self._behind is not None else RestHandlers(**rest),
            save_weights=adopted.save_weights_for_sampler if adopted is not None else None,
        )
        gauges.of_process(self._metrics, self._lag, self._pauses, self._drain, self._outputs)
        gauges.of_store(self._metrics, self._store)
        gauges.of_identity(self._metrics, self._sessions, self._keeper, self._door)
        self._answering = answering(
            self._outputs.access,
            door=self._door,
            delivery=self._sampling.delivery,
            behind=self._behind,
            trainer=self._trainer,
            metrics=self._metrics,
            memory=self._memory,
            hold_s=settings.poll.hold_s,
            begin=self.open,
        )
        told = (self._sampling, self._sessions, self._drain, self._catalog, self._table)
        more = (self._answering, self._outputs)
        self._reloads = Reloads(settings, (*told, *more), self._door, self._clock, self._metrics)
        self._allocator = Allocator(malloc_trim())
        self._ticker: asyncio.Task[None] | None = None
        self._catalog_task: asyncio.Task[None] | None = None
        self._closed = False

    def _model_of(self, sampling_session_id: str) -> str | None:
        return self._sessions.upstream_name(sampling_session_id)

    def __repr__(self) -> str:
        return f"<Gateway {self._store!r} {self._sessions!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            match = self._table.find(path_below_root(scope)) or self._beyond
            if match is not None:
                await self._answering.answer(match, scope, receive, send)
            elif self._behind is not None:
                await self._answering.pass_on(scope, receive, send)
            else:
                await self._answering.nowhere(scope, send)
        elif kind == "lifespan":
            inner = InnerLifespan(self._inner, scope) if self._inner is not None else None
            await serve_lifespan(receive, send, self.open, self.close, inner)
        elif self._behind is not None:
            await self._behind(scope, receive, send)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    # --- lifetime --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start serving; does nothing where it is open already.

        Raises:
            Unready: it was closed; what is closed stays so, or a late request would start it again.
        """
        if self._closed:
            raise Unready("this gateway was closed")
        if self._ticker is None:
            if self._shared is not None:
                await self._shared.open()
            self._client.open()
            if self._transport is not self._client:
                self._transport.open()
            self._pauses.open()
            self._outputs.open()
            if isinstance(self._behind, Proxy):
                self._behind.open()
            self._ticker = asyncio.create_task(self._tick_for_ever())
            self._answering.is_open = True
            self._catalog_task = asyncio.create_task(self._catalog.refresh())

    def drain(self, stopped: Callable[[], None]) -> None:
        """Begin to stop, or stop now; `stopped` is called once, when that is done (see `drain`)."""
        self._drain.signalled(self._clock.now(), stopped)

    def stop_holding(self) -> None:
        """The process is about to stop: refuse samples, answer parked polls, end connections."""
        self._drain.refuse()
        self._sampling.delivery.stop_holding()
        if isinstance(self._behind, Proxy):
            self._behind.stop_holding()

    async def close(self) -> None:
        """End all work and connections; unfinished samples answer 410 until the process is gone."""
        ticker, self._ticker = self._ticker, None
        if ticker is None:
            return
        self._closed = True
        self._answering.is_open = False
        self._pauses.close()
        tasks = [task for task in (ticker, self._catalog_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sampling.close()
        if self._shared is not None:
            await self._shared.close()
        await self._catalog.close()
        if self._transport is not self._client:
            await self._transport.close()
        await self._client.close()
        if self._door is not None:
            await self._door.close()
        if self._trainer is not None:
            await self._trainer.close()
        if isinstance(self._behind, Proxy):
            await self._behind.close()
        if self._keeper is not None:
            self._keeper.close()
        await self._outputs.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Gateway"]:
        """For hosts that do not run a mounted app's lifespan."""
        await self.open()
        try:
            yield self
        finally:
            await self.close()

    def drain_upstream(self, url: str, draining: bool = True) -> None:
        """Give it no new samples, or some again; NotFound where it is not configured."""
        self.fleet.drain(url, draining)

    def stop_process(self) -> None:
        """Drain and end the process. Raises Unsupported: it is not the gateway's."""
        raise Unsupported("this gateway is a part of another application, whose host drains it")

    def tick(self) -> None:
        """Everything that time alone does. Called ten times a second."""
        now = self._clock.now()
        self._sampling.tick(now)
        self._memory.tick(now)
        self._drain.tick(now)
        swept = self._sessions.sweep(now, SWEEP_BUDGET)
        if self._shared is None:
            self._sampling.bulk.swept(swept)
        else:
            self._shared.tick(now, swept)
        if self._allocator.tick(self._store.nbytes, now):
            self._store.shrink()
        if self._keeper is not None:
            self._keeper.tick(now)
        if self._door is not None:
            self._door.tick(now)
        self._outputs.tick()

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._lag.came(self._clock.now())
            try:
                self.tick()
            except Exception:
                log.exception("bug in the ticker")
                self._metrics.bugs += 1
