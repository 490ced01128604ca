"""What `/admin/state` answers: the gateway now, as numbers and names; nothing secret.

Counting all records of the largest sampling sessions takes 55 ms at 131,072, so it is done in
slices of 4 ms with turns of the loop between, and for all who look within a second once.
"""

import asyncio
import heapq
from importlib.metadata import version
from typing import Final, Protocol

import msgspec

from asgi_gateway.admin.messages import Holder, NotDone, Overview, Setting, Timing, UpstreamShown
from asgi_gateway.admin.recent import Recent
from asgi_gateway.admission import Admission
from asgi_gateway.clock import Clock
from asgi_gateway.configuration import leaves, shown, value_at
from asgi_gateway.drain import Drain, Stage
from asgi_gateway.metrics import BUCKETS_S, Metrics
from asgi_gateway.pauses import LoopLag
from asgi_gateway.sessions import Sessions
from asgi_gateway.settings import Settings
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import FAILED, QUEUED, RUNNING, SUCCEEDED, State
from asgi_gateway.upstream.fleet import Fleet
from asgi_gateway.upstream.standing import UpstreamState

HOLDERS: Final = 20
RECORDS_PER_SLICE: Final = 8192
FRESH_S: Final = 1.0
VERSION: Final = version("asgi-gateway")


class Others(Protocol):
    """Further processes on the same port."""

    async def state(self) -> bytes:
        """The overview of all, this one's included."""

    async def tell_upstream(self, url: str, draining: bool) -> None: ...


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the numbers are."""

    settings: Settings
    clock: Clock
    store: MemoryStore
    sessions: Sessions
    metrics: Metrics
    admission: Admission
    recent: Recent
    lag: LoopLag
    fleet: Fleet
    drain: Drain


class Overviews:
    """Makes one at most once in FRESH_S; those who ask meanwhile share it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._began_at = parts.clock.now()
        self._settings = _settings(parts.settings)
        self._made: bytes = b""
        self._made_at = float("-inf")
        self._making: asyncio.Task[bytes] | None = None
        self.others: Others | None = None

    def reconfigure(self, settings: Settings) -> None:
        """What is shown as in effect."""
        self._parts = msgspec.structs.replace(self._parts, settings=settings)
        self._settings = _settings(settings)

    async def whole(self) -> bytes:
        """The newest of all processes, encoded."""
        return await (self.json() if self.others is None else self.others.state())

    async def tell(self, url: str, draining: bool) -> None:
        """What an operator said of an upstream holds in all processes."""
        if self.others is not None:
            await self.others.tell_upstream(url, draining)

    async def json(self) -> bytes:
        """The newest of this process, encoded."""
        if self._parts.clock.now() - self._made_at < FRESH_S:
            return self._made
        if self._making is None:
            self._making = asyncio.create_task(self._make())
        # Its maker may leave; the others still wait for it.
        return await asyncio.shield(self._making)

    async def _make(self) -> bytes:
        try:
            holders = await self._holders()
            self._made = msgspec.json.encode(self._overview(holders))
            self._made_at = self._parts.clock.now()
            return self._made
        finally:
            self._making = None

    def _overview(self, holders: list[Holder]) -> Overview:
        p = self._parts
        store, metrics = p.store, p.metrics
        reasons = p.admission.reasons
        # When the monotonic clock was 0, in Unix time.
        started_at = p.clock.wall_time() - p.clock.now()
        return Overview(
            version=VERSION,
            time=p.clock.wall_time(),
            up_s=p.clock.now() - self._began_at,
            ready=not reasons,
            reasons=reasons,
            draining=p.drain.stage is not Stage.SERVING,
            samples={
                "queued": store.counts[QUEUED],
                "running": store.counts[RUNNING],
                "undelivered": store.undelivered,
                "held": len(store),
            },
            outcomes=dict(metrics.samples),
            refusals=dict(metrics.refusals),
            retries=dict(metrics.retries),
            polls=store.parked,
            sessions=len(p.sessions),
            bytes_charged=store.charged_bytes,
            bytes_limit=store.budget.max_bytes,
            results_bytes=store.results_bytes,
            loop_lag_s=p.lag.last_s,
            loop_lag_max_s=p.lag.max_s,
            bounds_s=list(BUCKETS_S),
            timings={
                name: Timing(histogram.buckets, histogram.seconds)
                for name, histogram in metrics.timings()
            },
            upstreams=[_upstream(state) for state in p.fleet.states],
            holders=holders,
            recent=[
                NotDone(started_at + f.at, f.request_id, f.outcome, f.category, f.error)
                for f in p.recent
            ],
            settings=self._settings,
        )

    async def _holders(self) -> list[Holder]:
        """The sampling sessions that hold most, counted by state."""
        targets = self._parts.store.targets
        now = self._parts.clock.now()
        holders = []
        for identifier, _ in heapq.nlargest(HOLDERS, targets.sizes(), key=lambda size: size[1]):
            sampling = self._parts.sessions.look_at(identifier)
            holder = Holder(identifier, "", "", 0.0)
            if sampling is not None:
                session = sampling.session
                holder.caller, holder.model = session.caller, sampling.model.upstream_name
                holder.alive_s = now - session.alive_at
            records = targets.records(identifier)
            for start in range(0, len(records), RECORDS_PER_SLICE):
                _count(holder, records[start : start + RECORDS_PER_SLICE])
                await asyncio.sleep(0)
            holders.append(holder)
        return holders


def _upstream(state: UpstreamState) -> UpstreamShown:
    if state.draining:
        shown_state = "draining"
    elif not state.up:
        shown_state = "down"
    elif state.breaker == "closed":
        shown_state = "up"
    else:
        shown_state = f"breaker {state.breaker}"
    return UpstreamShown(state.name, shown_state, state.in_flight, state.draining)


def _count(holder: Holder, records: list[Record]) -> None:
    counts = [0] * len(State)
    for record in records:
        counts[record.state] += 1
        holder.bytes += record.charged_bytes
    holder.queued += counts[QUEUED]
    holder.running += counts[RUNNING]
    holder.succeeded += counts[SUCCEEDED]
    holder.failed += counts[FAILED]


def _settings(settings: Settings) -> list[Setting]:
    """The effective settings in the order of the schema; secrets and credentials hidden."""
    listed = []
    defaults = Settings()
    for path, _ in leaves(Settings):
        value, default = value_at(settings, path), value_at(defaults, path)
        listed.append(Setting(path, shown(path, value), value == default))
    return listed
