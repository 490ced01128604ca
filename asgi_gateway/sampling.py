"""THE HOT PATH: accept, run, settle, deliver, from top to bottom.

A sample belongs to its promise, not to a connection: a dropped poll cancels nothing. Every run ends
in exactly one settlement. What an upstream outcome means for it is in `docs/behaviour.md`.
"""

import hashlib
import logging
from typing import Final

from asgi_gateway.clock import Clock
from asgi_gateway.codec.as_json import as_json
from asgi_gateway.codec.decode import Decoder
from asgi_gateway.codec.encode import encode
from asgi_gateway.delivery import UNFINISHED, Delivery
from asgi_gateway.errors import (
    Gone,
    Interrupted,
    Overdue,
    StaleConnection,
    Unavailable,
    UpstreamError,
)
from asgi_gateway.ids import Ids, names_other_request
from asgi_gateway.metrics import Metrics
from asgi_gateway.replies import QueueState
from asgi_gateway.settings import Settings
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Failure, Record
from asgi_gateway.store.states import State
from asgi_gateway.upstream.choice import Choice
from asgi_gateway.upstream.dispatch import Dispatch
from asgi_gateway.upstream.exchange import Exchange, Transport
from asgi_gateway.upstream.remedy import Remedies, Retry
from asgi_gateway.upstream.request import UpstreamRequest
from asgi_gateway.upstream.verdict import judge

log = logging.getLogger(__name__)

# A sample whose answer finds no room for so long takes it from results that nobody fetches.
MAKE_ROOM_AFTER_S: Final = 30.0
SWEEP_BUDGET: Final = 2048

_OUTCOMES: Final = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    State.GONE: "gone",
}


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
    ) -> None:
        self._read_timeout_s = settings.upstream.read_timeout_s
        self._clock = clock
        self._store = store
        self._transport = transport
        self._ids = ids
        self._metrics = metrics
        self._choice = Choice(settings.upstream)
        self._remedies = Remedies(settings.upstream)
        self._decoder = Decoder(settings.missing_logprobs)
        self._dispatch = Dispatch(
            store, clock, transport, settings.upstream.max_connections, self._begin
        )
        self.delivery = Delivery(store, clock, settings.poll)

    # --- accept ----------------------------------------------------------------------------------

    def submit(
        self, caller: str, sampling_session_id: str, seq_id: int, request: UpstreamRequest
    ) -> Record:
        """Take a sample in, or find the one that this submit repeats.

        Raises:
            Unsupported: the seq_id was used for another body.
            Overloaded: full by count or by bytes.
        """
        # The one parameter that shapes the result and is not part of the body.
        last = b"%d" % request.want.prompt_last
        digest = hashlib.blake2b(request.body, digest_size=16, salt=last).digest()
        earlier = self._store.submitted(sampling_session_id, seq_id, digest)
        if isinstance(earlier, Record):
            return earlier
        self._store.admit(len(request.body))
        record = Record(
            request_id=self._ids.issue(caller) if earlier is None else earlier.request_id,
            caller=caller,
            sampling_session_id=sampling_session_id,
            seq_id=seq_id,
            digest=digest,
            want=request.want,
            prompt_tokens=request.prompt_tokens,
            reserve_bytes=request.reserve_bytes,
            body=request.body,
            accepted_at=self._clock.now(),
        )
        self._store.accept(record)
        self._dispatch.enqueue(record)
        return record

    # --- run -------------------------------------------------------------------------------------

    def _begin(self, record: Record) -> Exchange:
        """Send one RUNNING record upstream."""
        self._metrics.stage("queued", record.started_at - record.accepted_at)
        run = _Run(self, record)
        self._send(run)
        return run

    def _send(self, run: "_Run") -> None:
        record = run.record
        run.url = self._choice.url(record)
        self._transport.send(
            run,
            run.url,
            record.body or b"",
            request_id=record.request_id,
            affinity=self._choice.affinity(record),
            fresh=run.fresh,
        )

    def answering(self, run: "_Run") -> None:
        self._store.drop_prompt(run.record)

    def answered(self, run: "_Run", status: int, body: bytes, retry_after: str | None) -> None:
        """The upstream's whole answer: a result, or what it says went wrong."""
        record = run.record
        try:
            if status != 200:
                failure = judge(status, body, retry_after)
                if failure is not None:
                    raise failure
            if names_other_request(body, record.request_id):
                raise Interrupted("the upstream answered another request on this connection")
            result = encode(self._decoder.decode(body, record.want, record.prompt_tokens))
        except Exception as error:  # noqa: BLE001 - told apart there
            self.failed(run, error)
            return
        self._remedies.succeeded(record, run.url)
        if self._store.succeed(record, result, self._clock.now()):
            self._settled(record)
        self._ended(run, "ok")

    def failed(self, run: "_Run", error: Exception) -> None:
        """No answer, or none that is a result: another try, a 410 or an error result."""
        record = run.record
        if isinstance(error, StaleConnection):
            if not run.fresh and record.body is not None:
                run.fresh = True
                self._metrics.retries["stale_connection"] += 1
                self._send(run)
                return
            error = Interrupted(str(error))
        if not isinstance(error, UpstreamError):
            log.error("bug while running %s", record.request_id, exc_info=error)
            self._metrics.bugs += 1
            self._fail(record, Failure("an internal error of the gateway", "server"))
            self._ended(run, "bug")
            return
        if record.state is State.RUNNING:  # or it was cancelled or overdue meanwhile
            self._recover(record, error, run.url)
        self._ended(run, type(error).__name__.lower())

    def _recover(self, record: Record, error: UpstreamError, url: str) -> None:
        now = self._clock.now()
        if isinstance(error, Unavailable) and record.unavailable_since is None:
            self._transport.forget_addresses()
        remedy = self._remedies.after(record, error, url, now)
        if isinstance(remedy, Retry):
            self._retry(record, remedy, now)
        elif isinstance(remedy, Failure):
            log.warning("sample %s failed: %s", record.request_id, remedy.text)
            self._fail(record, remedy)
        else:
            log.warning("sample %s handed back to its client: %s", record.request_id, error)
            self._evict(record, told=False)

    def _ended(self, run: "_Run", outcome: str) -> None:
        self._metrics.upstream[outcome] += 1
        self._dispatch.ended(run.record, run)

    def _abort(self, record: Record) -> None:
        """End the upstream request of a settled record, where it has one."""
        if self._dispatch.abort(record):
            self._metrics.upstream["aborted"] += 1

    # --- settle ----------------------------------------------------------------------------------

    def _retry(self, record: Record, retry: Retry, now: float) -> None:
        if self._store.retry(record):
            self._metrics.retries[retry.reason] += 1
            if retry.not_before > now:
                self._dispatch.enqueue_later(record, retry.not_before)
            else:
                self._dispatch.enqueue(record, first=True)

    def _fail(self, record: Record, failure: Failure) -> None:
        if self._store.fail(record, failure, self._clock.now()):
            self._settled(record)

    def _evict(self, record: Record, *, told: bool) -> None:
        unfinished = record.state in UNFINISHED
        if self._store.evict(record, told=told) and unfinished:
            self._settled(record)

    def _settled(self, record: Record) -> None:
        self._metrics.samples[_OUTCOMES[record.state]] += 1
        if record.started_at:
            self._metrics.stage("upstream", self._clock.now() - record.started_at)
        self.delivery.settled(record)

    # --- find ------------------------------------------------------------------------------------

    def find(self, request_id: str, caller: str) -> Record:
        """The record of an id.

        Raises:
            Gone: issued to this caller and no longer held.
            NotFound: never issued, or another caller's.
        """
        record = self._store.find(request_id)
        if record is not None and record.caller == caller:
            return record
        if self._store.told_lost(request_id, caller):
            raise Gone("this sample was interrupted; submit it again")
        raise self._ids.missing(request_id, caller)

    def told_gone(self, record: Record) -> None:
        """The client of a parked poll is told that its sample is gone."""
        self._store.told_lost(record.request_id, record.caller)

    def delivered(self, record: Record) -> None:
        """The outcome goes out to a client that is there: start the shorter clock."""
        now = self._clock.now()
        if self._store.delivered(record, now):
            self._metrics.stage("deliver", now - record.settled_at)

    def acknowledge(self, request_ids: list[str], caller: str) -> None:
        self._store.acknowledge(request_ids, caller)

    def json_of(self, record: Record) -> bytes:
        """The JSON form of a result, made at its first delivery to an SDK below 0.25."""
        if record.result_json is None:
            self._store.keep_json(record, as_json(record.result or b""))
        return record.result_json or b""

    def queue_state(self, record: Record) -> tuple[QueueState, str | None]:
        """What the SDK shows its user while a sample is not finished: state and reason."""
        if record.unavailable_since is not None:
            return "paused_capacity", "the inference server is not available; trying again"
        if record.state is State.QUEUED:
            return "paused_capacity", "waiting for a free slot on the inference server"
        return "active", None

    # --- cancel, time and stopping ---------------------------------------------------------------

    def cancel(self, record: Record) -> None:
        """The client does not want it any more; vLLM's slot is freed by closing the connection."""
        if self._store.cancel(record, self._clock.now()):
            self._settled(record)
            self._abort(record)

    def end_session(self, sampling_session_id: str, *, finished: bool) -> None:
        """End a sampling session's upstream work and drop its results: its ids answer 410.
        finished: its client said so and will not ask; otherwise it may come back, and is told then.
        """
        for record in self._store.targets.records(sampling_session_id):
            self._evict(record, told=finished)
            self._abort(record)
        if finished:
            self._store.targets.forget(sampling_session_id)

    def tick(self, now: float) -> None:
        """Everything that time alone does: end holds, expire results, fail overdue work."""
        self.delivery.tick(now, SWEEP_BUDGET)
        for record in self._store.sweep(now, SWEEP_BUDGET).overdue:
            error = Overdue(f"no answer within {self._read_timeout_s:g} s")
            self._fail(record, Failure(str(error), error.category))
            self._abort(record)
        blocked = self._dispatch.blocked(now, MAKE_ROOM_AFTER_S)
        if blocked is not None:
            self._metrics.evicted_for_room += self._store.make_room(blocked)
        self._dispatch.tick(now)

    def close(self) -> None:
        """Give every unfinished sample back, answer the polls parked for them, end the work."""
        self.delivery.stop_holding()
        for record in self._store.unfinished():
            self._evict(record, told=False)
            self._abort(record)
        self._dispatch.close()


class _Run(Exchange):
    """One record on its way through an upstream."""

    __slots__ = ("_sampling", "fresh", "record", "url")

    def __init__(self, sampling: Sampling, record: Record) -> None:
        super().__init__()
        self._sampling = sampling
        self.record = record
        self.url = ""
        self.fresh = False

    def answering(self) -> None:
        self._sampling.answering(self)

    def answered(self, status: int, body: bytes, retry_after: str | None) -> None:
        self._sampling.answered(self, status, body, retry_after)

    def failed(self, error: Exception) -> None:
        self._sampling.failed(self, error)
