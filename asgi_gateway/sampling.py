"""THE HOT PATH: accept, run and settle (in `runs`), deliver.

A sample belongs to its promise, not to a connection: a dropped poll cancels nothing.
"""

import hashlib
from collections.abc import Callable
from typing import Final, Protocol

from asgi_gateway.access.quota import Quota
from asgi_gateway.admission import Admission
from asgi_gateway.bulk import Bulk
from asgi_gateway.caller import Caller
from asgi_gateway.clock import Clock
from asgi_gateway.codec.as_json import as_json
from asgi_gateway.delivery import Delivery
from asgi_gateway.errors import Gone, Overdue, Overloaded
from asgi_gateway.ids import Ids
from asgi_gateway.metrics import Metrics
from asgi_gateway.outcomes import Outcomes
from asgi_gateway.replies import QueueState
from asgi_gateway.runs import Runs
from asgi_gateway.samplelog import SampleLog
from asgi_gateway.settings import PollSettings, Settings
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Failure, Record
from asgi_gateway.store.shortage import Shortage
from asgi_gateway.store.states import State
from asgi_gateway.tracing.context import Trace
from asgi_gateway.tracing.traces import Traces
from asgi_gateway.upstream.checks import Ask, Checks
from asgi_gateway.upstream.exchange import Transport
from asgi_gateway.upstream.fleet import NOT_AVAILABLE, SURVIVED_S
from asgi_gateway.upstream.following import following
from asgi_gateway.upstream.request import UpstreamRequest

# A sample whose answer finds no room for so long takes it from results that nobody fetches.
MAKE_ROOM_AFTER_S: Final = 30.0
SWEEP_BUDGET: Final = 2048


class Sharing(Protocol):
    """What is done otherwise where the store is shared."""

    def make_delivery(self, store: MemoryStore, clock: Clock, settings: PollSettings) -> Delivery:
        """As Delivery is made."""

    def beginning(
        self,
        enqueue: Callable[[Record], None],
        withdrawn: Callable[[Record], None],
        renamed: Callable[[Record, str], None],
    ) -> Callable[[Record], None]:
        """What is called with each accepted record. enqueue: puts it in line. withdrawn: it is not
        ours after all. renamed: it has another id than it was accepted under."""

    def told_gone(self, request_id: str, caller: str) -> None:
        """The client knows that its sample is lost."""

    def group_of(self, sampling_session_id: str) -> int:
        """Where keys of a sample are, which its id says."""


class Sampling:
    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        store: MemoryStore,
        transport: Transport,
        ids: Ids,
        metrics: Metrics,
        admission: Admission,
        ask_health: Ask,
        samplelog: SampleLog | None = None,
        quota: Quota | None = None,
        traces: Traces | None = None,
        shared: Sharing | None = None,
    ) -> None:
        """ask_health: see `upstream.checks`. quota: limits of single callers, if there are any.
        shared: where other gateways have the store too."""
        self._read_timeout_s = settings.upstream.read_timeout_s
        self._clock = clock
        self._store = store
        self._ids = ids
        self._metrics = metrics
        self._admission = admission
        self._quota = quota
        make_delivery = Delivery if shared is None else shared.make_delivery
        self.delivery = make_delivery(store, clock, settings.poll)
        outcomes = Outcomes(metrics, samplelog, quota, traces)
        self._traces = outcomes.traces
        self.recent = outcomes.recent
        self._runs = Runs(
            settings=settings,
            clock=clock,
            store=store,
            transport=transport,
            delivery=self.delivery,
            metrics=metrics,
            outcomes=outcomes,
            admission=admission,
        )
        self.fleet = self._runs.fleet
        self.fleet.moved.append(lambda _, urls: transport.serve(urls))
        if samplelog is not None:
            self.fleet.moved.append(samplelog.move)
        self._checks = Checks(self.fleet, clock, ask_health, settings.upstream.health_interval_s)
        self._following = following(settings.upstream, self.fleet, clock)
        if self._following is not None:
            self._following.add_to(metrics)
        self._runs.add_to(metrics)
        self._dispatch = self._runs.dispatch
        # Of an accepted record: it gets in line, now or once the shared store knows of it.
        enqueue = self._dispatch.enqueue
        self._begin = (
            enqueue
            if shared is None
            else shared.beginning(enqueue, outcomes.withdrawn, self._traces.renamed)
        )
        self._group_of = None if shared is None else shared.group_of
        self._tell_gone = store.told_lost if shared is None else shared.told_gone
        self.bulk = Bulk(store, self._end)
        # Of the last submit that found no room.
        self._wanted_bytes = 0
        self._no_room = Shortage()

    def reconfigure(self, settings: Settings) -> None:
        self.delivery.reconfigure(settings.poll)
        self._runs.reconfigure(settings.upstream)
        self._checks.reconfigure(settings.upstream.health_interval_s)
        self._store.reconfigure(settings.store.completed_ttl_s, settings.store.retrieved_ttl_s)
        self._store.budget.reconfigure(settings.store)

    # --- accept ----------------------------------------------------------------------------------

    def submit(
        self,
        caller: Caller,
        sampling_session_id: str,
        seq_id: int,
        request: UpstreamRequest,
        trace: Trace | None = None,
    ) -> Record:
        """Take a sample in, or find the one that this submit repeats, whose trace stays its first.

        Raises:
            Unsupported: the seq_id was used for another body.
            Refusal: not now; Overloaded where it is full by count or by bytes, or the caller
                is at its own limit.
        """
        hashed = hashlib.blake2b(request.body, digest_size=16)
        if request.want.prompt_last:
            # The one parameter that shapes the result and is not part of the body.
            hashed.update(b" last %d" % request.want.prompt_last)
        digest = hashed.digest()
        earlier = self._store.submitted(sampling_session_id, seq_id, digest)
        if isinstance(earlier, Record):
            return earlier
        self._admission.check()
        try:
            self._store.admit(len(request.body))
        except Overloaded:
            self._turned_away(len(request.body))
            raise
        name, now = caller.name, self._clock.now()
        if self._quota is not None:
            self._quota.check(caller, now)
        if earlier is not None:
            request_id = earlier.request_id
        elif self._group_of is None:
            request_id = self._ids.issue(name)
        else:
            request_id = self._ids.issue(name, group=self._group_of(sampling_session_id))
        record = Record(
            request_id=request_id,
            caller=name,
            sampling_session_id=sampling_session_id,
            seq_id=seq_id,
            digest=digest,
            want=request.want,
            prompt_tokens=request.prompt_tokens,
            reserve_bytes=request.reserve_bytes,
            body=request.body,
            accepted_at=now,
        )
        self._store.accept(record)
        if self._quota is not None:
            self._quota.accepted(name)
        if trace is not None or self._traces.share:
            self._traces.begin(record, trace)
        self._begin(record)
        return record

    def _turned_away(self, nbytes: int) -> None:
        if self._store.budget.lacks_bytes(nbytes):
            self._wanted_bytes = nbytes
            self._no_room.seen(self._clock.now())

    # --- find ------------------------------------------------------------------------------------

    def find(self, request_id: str, caller: str) -> Record:
        """The record of an id.

        Raises:
            Gone: issued to this caller and no longer held.
            NotFound: never issued, or another caller's.
        """
        record = self.held(request_id, caller)
        if record is not None:
            return record
        if self._store.told_lost(request_id, caller):
            raise Gone("this sample was interrupted; submit it again")
        raise self._ids.missing(request_id, caller)

    def held(self, request_id: str, caller: str) -> Record | None:
        """The record of an id where it is held here."""
        record = self._store.find(request_id)
        return record if record is not None and record.caller == caller else None

    def told_gone(self, record: Record) -> None:
        """The client of a parked poll is told that its sample is gone."""
        self._tell_gone(record.request_id, record.caller)

    def delivered(self, record: Record) -> None:
        """The outcome goes out to a client that is there: start the shorter clock."""
        now = self._clock.now()
        if self._store.delivered(record, now):
            self._metrics.stage("deliver", now - record.settled_at)

    def json_of(self, record: Record) -> bytes:
        """The JSON form of a result, made at its first delivery to an SDK below 0.25."""
        if record.result_json is None:
            self._store.keep_json(record, as_json(record.result or b""))
        return record.result_json or b""

    def queue_state(self, record: Record) -> tuple[QueueState, str | None]:
        """What the SDK shows its user while a sample is not finished: state and reason."""
        queued = record.state is State.QUEUED
        # A try that stands for so long was taken.
        trying = queued or self._clock.now() - record.started_at < SURVIVED_S
        if (trying and record.unavailable_since is not None) or (
            queued and not self.fleet.available
        ):
            return "paused_capacity", f"{NOT_AVAILABLE}; trying again"
        if queued:
            return "paused_capacity", "waiting for a free slot on the inference server"
        return "active", None

    # --- cancel, time and stopping ---------------------------------------------------------------

    def cancel(self, record: Record) -> None:
        """The client does not want it any more; vLLM's slot is freed by closing the connection."""
        if self._store.cancel(record, self._clock.now()):
            self._runs.settled(record)
            self._runs.abort(record)

    def _end(self, record: Record, told: bool) -> None:
        self._runs.evict(record, told=told)
        self._runs.abort(record)

    def adopted(self, record: Record) -> None:
        """A sample that another process took in runs here."""
        if self._quota is not None:
            self._quota.accepted(record.caller)

    def abandon(self, record: Record) -> None:
        """It is another process's now, or lost."""
        self._end(record, told=True)

    def tick(self, now: float) -> None:
        """Everything that time alone does: end holds, expire results, fail overdue work."""
        self.delivery.tick(now, SWEEP_BUDGET)
        expired = self._store.sweep(now, SWEEP_BUDGET)
        self._metrics.unfetched += expired.unfetched
        for record in expired.overdue:
            error = Overdue(f"no answer within {self._read_timeout_s:g} s")
            self._runs.fail(record, Failure(str(error), error.category))
            self._runs.abort(record)
        undelivered_by = now - MAKE_ROOM_AFTER_S
        blocked = self._dispatch.blocked(now, MAKE_ROOM_AFTER_S)
        self._metrics.evicted_for_room += self.bulk.make_room(blocked, undelivered_by)
        if self._wanted_bytes and self._no_room.lasts(now, MAKE_ROOM_AFTER_S):
            wanted_bytes, self._wanted_bytes = self._wanted_bytes, 0
            self._metrics.evicted_for_room += self.bulk.make_room_for(wanted_bytes, undelivered_by)
        self._checks.tick(now)
        if self._following is not None:
            self._following.tick()
        self._runs.tick(now)

    def shed(self, nbytes: int, undelivered: bool) -> int:
        """Drop settled results of about so many bytes, a turn's work of them at most."""
        before = self._store.charged_bytes
        self._metrics.evicted_for_room += self.bulk.shed(nbytes, undelivered)
        return before - self._store.charged_bytes

    def close(self) -> None:
        """Give every unfinished sample back, answer the polls parked for them, end the work."""
        self.delivery.stop_holding()
        self._checks.close()
        if self._following is not None:
            self._following.close()
        self.bulk.close()
        self._dispatch.stop()
        for record in self._store.unfinished():
            self._end(record, told=False)
        self._dispatch.close()
