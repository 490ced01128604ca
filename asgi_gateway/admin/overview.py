"""What `/admin/state` answers: the gateway now, as numbers and names; nothing secret.

Counting all records of the largest sampling sessions takes 15 ms at 131,072, so it is done in
slices with turns of the loop between, and for all who look within a second once.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from asgi_gateway.admin.recent import Failed, Recent
from asgi_gateway.admission import Admission
from asgi_gateway.clock import Clock
from asgi_gateway.metrics import BUCKETS_S, Metrics
from asgi_gateway.sessions import Sessions
from asgi_gateway.settings import SECRETS, Settings, leaves
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import FAILED, QUEUED, RUNNING, SUCCEEDED, State

HOLDERS: Final = 20
RECORDS_PER_SLICE: Final = 8192
FRESH_S: Final = 1.0


class UpstreamState(msgspec.Struct, frozen=True):
    """One upstream under its configured name, which holds no credentials."""

    name: str
    state: str
    in_flight: int
    draining: bool


class Holder(msgspec.Struct):
    """A sampling session by what is held for it. `bytes`: prompts, reserved answers, results."""

    sampling_session_id: str
    caller: str
    model: str
    alive_s: float
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    bytes: int = 0


class Timing(msgspec.Struct, frozen=True):
    """A histogram: counts of each bucket alone, the one beyond the last bound included."""

    counts: list[int]
    seconds: float


class Setting(msgspec.Struct, frozen=True):
    path: str
    value: str
    is_default: bool


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Counters are since the start; who wants a rate takes differences. Times are seconds."""

    version: str
    time: float
    up_s: float
    ready: bool
    reasons: list[str]
    draining: bool
    samples: dict[str, int]
    outcomes: dict[str, int]
    refusals: dict[str, int]
    retries: dict[str, int]
    polls: int
    sessions: int
    bytes_charged: int
    bytes_limit: int
    results_bytes: int
    loop_lag_s: float
    loop_lag_max_s: float
    bounds_s: list[float]
    timings: dict[str, Timing]
    upstreams: list[UpstreamState]
    holders: list[Holder]
    recent: list[Failed]
    settings: list[Setting]


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the numbers are."""

    version: str
    settings: Settings
    clock: Clock
    store: MemoryStore
    sessions: Sessions
    metrics: Metrics
    admission: Admission
    recent: Recent
    lag: Callable[[], tuple[float, float]]
    upstreams: Callable[[], Iterable[UpstreamState]]
    draining: Callable[[], bool]


class Overviews:
    """Makes one at most once in FRESH_S; those who ask meanwhile share it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._began_at = parts.clock.now()
        self._settings = _settings(parts.settings)
        self._made: bytes = b""
        self._made_at = float("-inf")
        self._making: asyncio.Task[bytes] | None = None

    async def json(self) -> bytes:
        """The newest overview, encoded."""
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
        lag_s, lag_max_s = p.lag()
        reasons = p.admission.reasons
        return Overview(
            version=p.version,
            time=p.clock.wall_time(),
            up_s=p.clock.now() - self._began_at,
            ready=not reasons,
            reasons=reasons,
            draining=p.draining(),
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
            loop_lag_s=lag_s,
            loop_lag_max_s=lag_max_s,
            bounds_s=list(BUCKETS_S),
            timings={
                name: Timing(histogram.buckets, histogram.seconds)
                for name, histogram in metrics.timings()
            },
            upstreams=list(p.upstreams()),
            holders=holders,
            recent=list(p.recent),
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
    shown = []
    defaults = Settings()
    for path, _ in leaves(Settings):
        value, default = _at(settings, path), _at(defaults, path)
        text = "(hidden)" if path in SECRETS and value is not None else repr(value)
        shown.append(Setting(path, text, value == default))
    return shown


def _at(settings: Settings, path: str) -> Any:
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value
