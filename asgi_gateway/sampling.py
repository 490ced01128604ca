"""THE HOT PATH: accept, run, settle, deliver, from top to bottom.

A sample belongs to its promise, not to a connection: a dropped poll cancels nothing. Every run ends
in exactly one settlement. What an upstream outcome means for it is in `docs/behaviour.md`.
"""

import asyncio
import hashlib
import logging
import random
from typing import Final

from asgi_gateway.bulk import Bulk
from asgi_gateway.clock import Clock
from asgi_gateway.codec.as_json import as_json
from asgi_gateway.codec.decode import Decoder
from asgi_gateway.codec.encode import encode
from asgi_gateway.delivery import UNFINISHED, Delivery
from asgi_gateway.errors import (
    Aborted,
    EngineFault,
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
from asgi_gateway.upstream.client import Client, Exchange
from asgi_gateway.upstream.dispatch import Dispatch
from asgi_gateway.upstream.poison import PoisonGuard
from asgi_gateway.upstream.request import UpstreamRequest

log = logging.getLogger(__name__)

ENGINE_FAULT_RETRY_S: Final = 1.0
BACKOFF_START_S: Final = 0.5
BACKOFF_CAP_S: Final = 15.0
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
        client: Client,
        ids: Ids,
        metrics: Metrics,
    ) -> None:
        self._upstream = settings.upstream
        self._clock = clock
        self._store = store
        self._client = client
        self._ids = ids
        self._metrics = metrics
        self._choice = Choice(settings.upstream)
        self._poison = PoisonGuard(settings.upstream.poison_after)
        self._decoder = Decoder(settings.missing_logprobs)
        self._dispatch = Dispatch(store, clock, settings.upstream.max_connections, self.run)
        self.delivery = Delivery(store, clock, settings.poll)
        self.bulk = Bulk(store, self._end)

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

    async def run(self, record: Record, exchange: Exchange) -> None:
        """Send one RUNNING record upstream and settle it, or put it back in line."""
        self._metrics.stage("queued", record.started_at - record.accepted_at)
        try:
            answer = await self._post(record, exchange)
            if names_other_request(answer, record.request_id):
                raise Interrupted("the upstream answered another request on this connection")
            result = encode(self._decoder.decode(answer, record.want, record.prompt_tokens))
            outcome = "ok"
            self._poison.succeeded(record.digest, exchange.url)
            if self._store.succeed(record, result, self._clock.now()):
                self._settled(record)
        except UpstreamError as error:
            outcome = type(error).__name__.lower()
            self._settle_failed(record, error, exchange)
        except asyncio.CancelledError:
            # Whoever aborted has settled the record; if nobody did, the process is stopping.
            outcome = "aborted"
            if record.state is State.RUNNING:
                self._evict(record, told=False)
        except Exception:
            log.exception("bug while running %s", record.request_id)
            outcome = "bug"
            self._metrics.bugs += 1
            self._fail(record, Failure("an internal error of the gateway", "server"))
        self._metrics.upstream[outcome] += 1

    async def _post(self, record: Record, exchange: Exchange) -> bytes:
        """The whole 2xx answer; once more on a fresh connection where an idle one had died."""
        for fresh in (False, True):
            if record.body is None:
                raise Interrupted("the sample was settled before it was sent")
            try:
                exchange.url = self._choice.url(record)
                return await self._client.complete(
                    exchange.url,
                    record.body,
                    request_id=record.request_id,
                    affinity=self._choice.affinity(record),
                    exchange=exchange,
                    on_answer=lambda: self._store.drop_prompt(record),
                    fresh=fresh,
                )
            except StaleConnection as error:
                if fresh:
                    raise Interrupted(str(error)) from error
                self._metrics.retries["stale_connection"] += 1
        raise AssertionError("unreachable")

    # --- settle ----------------------------------------------------------------------------------

    def _settle_failed(self, record: Record, error: UpstreamError, exchange: Exchange) -> None:
        """An upstream error becomes a retry, a 410 or an error result."""
        if record.state is not State.RUNNING:
            return  # cancelled or overdue meanwhile
        now = self._clock.now()
        if isinstance(error, Unavailable):
            self._wait_for_upstream(record, error, now)
        elif isinstance(error, EngineFault) and not record.engine_faults and record.body:
            record.engine_faults += 1
            self._retry(record, now + ENGINE_FAULT_RETRY_S, "engine_fault")
        elif isinstance(error, Interrupted):
            if self._is_poison(record, error, exchange.url, now):
                text = f"{error}; interrupted {self._upstream.poison_after} times, not tried again"
                log.warning("sample %s failed: %s", record.request_id, text)
                self._fail(record, Failure(text, "server"))
            elif record.reads_failed < self._upstream.read_retries and record.body:
                record.reads_failed += 1
                self._retry(record, now, "interrupted")
            else:
                self._give_back(record, error)
        else:
            log.warning("sample %s failed: %s", record.request_id, error)
            self._fail(record, Failure(str(error), error.category))

    def _is_poison(self, record: Record, error: UpstreamError, url: str, now: float) -> bool:
        """Whether this body keeps taking the engine down; an abort is the engine's own doing."""
        if isinstance(error, Aborted):
            return False
        return self._poison.lost(record.digest, url, now)

    def _wait_for_upstream(self, record: Record, error: Unavailable, now: float) -> None:
        """Once more at once, then with back-off within the grace time; after it, 410."""
        record.unavailable_count += 1
        wait_s = error.retry_after_s or 0.0
        if record.unavailable_since is None:
            record.unavailable_since = now
            self._client.forget_addresses()
        else:
            backoff_s = min(BACKOFF_START_S * 2.0 ** (record.unavailable_count - 2), BACKOFF_CAP_S)
            wait_s = max(wait_s, backoff_s * random.uniform(0.5, 1.0))
        if now + wait_s > record.unavailable_since + self._upstream.unavailable_grace_s:
            self._give_back(record, error)
        else:
            self._retry(record, now + wait_s, "unavailable")

    def _retry(self, record: Record, not_before: float, reason: str) -> None:
        if self._store.retry(record):
            self._metrics.retries[reason] += 1
            if not_before > self._clock.now():
                self._dispatch.enqueue_later(record, not_before)
            else:
                self._dispatch.enqueue(record, first=True)

    def _fail(self, record: Record, failure: Failure) -> None:
        if self._store.fail(record, failure, self._clock.now()):
            self._settled(record)

    def _give_back(self, record: Record, error: UpstreamError) -> None:
        """Settle as 410: the SDK submits the sample again and no training run ends."""
        log.warning("sample %s handed back to its client: %s", record.request_id, error)
        self._evict(record, told=False)

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
            self._dispatch.abort(record)

    def _end(self, record: Record, told: bool) -> None:
        self._evict(record, told=told)
        self._dispatch.abort(record)

    def tick(self, now: float) -> None:
        """Everything that time alone does: end holds, expire results, fail overdue work."""
        self.delivery.tick(now, SWEEP_BUDGET)
        for record in self._store.sweep(now, SWEEP_BUDGET).overdue:
            error = Overdue(f"no answer within {self._upstream.read_timeout_s:g} s")
            self._fail(record, Failure(str(error), error.category))
            self._dispatch.abort(record)
        blocked = self._dispatch.blocked(now, MAKE_ROOM_AFTER_S)
        self._metrics.evicted_for_room += self.bulk.make_room(blocked)
        self._dispatch.tick(now)

    async def close(self) -> None:
        """Give every unfinished sample back, answer the polls parked for them, end the work."""
        self.delivery.stop_holding()
        self.bulk.close()
        for record in self._store.unfinished():
            self._end(record, told=False)
        await self._dispatch.close()
