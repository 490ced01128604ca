"""THE HOT PATH: accept, run, settle, deliver, from top to bottom.

A sample belongs to its promise, not to a connection: a dropped poll cancels nothing. Every run ends
in exactly one settlement, whatever happened to it. What an upstream outcome means for the sample is
`docs/behaviour.md`, "Upstream outcomes".
"""

import asyncio
import enum
import hashlib
import logging
import random
from collections import deque
from typing import Final

from asgi_gateway.asgi import Peer, Waker
from asgi_gateway.clock import Clock
from asgi_gateway.codec.decode import Decoder
from asgi_gateway.codec.encode import encode
from asgi_gateway.errors import (
    EngineFault,
    Interrupted,
    Overdue,
    StaleConnection,
    Unavailable,
    UpstreamError,
)
from asgi_gateway.ids import Ids
from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import Settings
from asgi_gateway.store.expiry import Deadlines
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Failure, Record
from asgi_gateway.store.states import State
from asgi_gateway.upstream.client import Client, Exchange
from asgi_gateway.upstream.dispatch import Dispatch
from asgi_gateway.upstream.request import UpstreamRequest

log = logging.getLogger(__name__)

ENGINE_FAULT_RETRY_S: Final = 1.0
BACKOFF_START_S: Final = 0.5
BACKOFF_CAP_S: Final = 15.0
SWEEP_BUDGET: Final = 2048

_UNFINISHED: Final = frozenset({State.QUEUED, State.RUNNING})
_OUTCOMES: Final = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    State.GONE: "gone",
}


class Outcome(enum.Enum):
    """What a poll found."""

    READY = "ready"
    PENDING = "pending"
    GONE = "gone"


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
        self._decoder = Decoder(settings.missing_logprobs)
        self._dispatch = Dispatch(store, clock, settings.upstream.max_connections, self.run)
        self._holds: Deadlines[Waker] = Deadlines(settings.poll.hold_s)
        self._wakes: deque[Waker] = deque()
        self._wakes_per_turn = settings.poll.wakes_per_turn
        self._holding = True

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
        record = self._store.submitted(sampling_session_id, seq_id, digest)
        if record is not None:
            return record
        self._store.admit(len(request.body))
        record = Record(
            request_id=self._ids.issue(caller),
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
        try:
            answer = await self._post(record, exchange)
            result = encode(self._decoder.decode(answer, record.want, record.prompt_tokens))
            outcome = "ok"
            if self._store.succeed(record, result, self._clock.now()):
                self._settled(record)
        except UpstreamError as error:
            outcome = type(error).__name__.lower()
            self._settle_failed(record, error)
        except asyncio.CancelledError:
            # Whoever aborted has settled the record; if nobody did, the process is stopping.
            outcome = "aborted"
            if record.state is State.RUNNING:
                self._evict(record)
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
                return await self._client.complete(
                    self._url(record),
                    record.body,
                    request_id=record.request_id,
                    affinity=self._affinity(record),
                    exchange=exchange,
                    on_answer=lambda: self._store.drop_prompt(record),
                    fresh=fresh,
                )
            except StaleConnection as error:
                if fresh:
                    raise Interrupted(str(error)) from error
                self._metrics.retries["stale_connection"] += 1
        raise AssertionError("unreachable")

    def _url(self, record: Record) -> str:
        """An upstream by rendezvous hash on the affinity key; after unavailability, the next."""
        urls = self._upstream.urls
        if len(urls) == 1:
            return urls[0]
        key = self._affinity(record) or record.request_id
        ranked = sorted(urls, key=lambda url: hashlib.blake2b(f"{key}\0{url}".encode()).digest())
        return ranked[(record.unavailable_count + record.engine_faults) % len(urls)]

    def _affinity(self, record: Record) -> str | None:
        if self._upstream.affinity == "sample":
            return f"{record.sampling_session_id}:{record.seq_id}"
        return record.sampling_session_id if self._upstream.affinity == "session" else None

    # --- settle ----------------------------------------------------------------------------------

    def _settle_failed(self, record: Record, error: UpstreamError) -> None:
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
            if record.reads_failed < self._upstream.read_retries and record.body:
                record.reads_failed += 1
                self._retry(record, now, "interrupted")
            else:
                self._give_back(record, error)
        else:
            log.warning("sample %s failed: %s", record.request_id, error)
            self._fail(record, Failure(str(error), error.category))

    def _wait_for_upstream(self, record: Record, error: Unavailable, now: float) -> None:
        """Once more at once, then with back-off within the grace time; after it, 410."""
        record.unavailable_count += 1
        if record.unavailable_since is None:
            record.unavailable_since = now
            self._client.forget_addresses()
            self._retry(record, now + (error.retry_after_s or 0.0), "unavailable")
            return
        backoff_s = min(BACKOFF_START_S * 2.0 ** (record.unavailable_count - 2), BACKOFF_CAP_S)
        wait_s = max(error.retry_after_s or 0.0, backoff_s * random.uniform(0.5, 1.0))
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
        self._evict(record)

    def _evict(self, record: Record) -> None:
        unfinished = record.state in _UNFINISHED
        if self._store.evict(record) and unfinished:
            self._settled(record)

    def _settled(self, record: Record) -> None:
        """Count a settlement and wake whoever is parked for it."""
        self._metrics.samples[_OUTCOMES[record.state]] += 1
        for waker in self._store.waiters(record):
            self._wake_soon(waker)

    # --- deliver ---------------------------------------------------------------------------------

    def find(self, request_id: str, caller: str) -> Record:
        """The record of an id.

        Raises:
            Gone: issued to this caller and no longer held.
            NotFound: never issued, or another caller's.
        """
        record = self._store.find(request_id)
        if record is None or record.caller != caller:
            raise self._ids.missing(request_id, caller)
        return record

    async def outcome(self, record: Record, peer: Peer) -> Outcome:
        """What became of a sample, after at most one hold; PENDING then, or if the client left."""
        if record.state in _UNFINISHED and self._holding:
            waker = Waker()
            self._store.park(record, waker)
            self._holds.start(waker, self._clock.now())
            try:
                peer.watch(waker)
                await waker.future
            finally:
                self._holds.stop(waker)
                self._store.unpark(record, waker)
        if record.state in _UNFINISHED:
            return Outcome.PENDING
        return Outcome.GONE if record.state is State.GONE else Outcome.READY

    def delivered(self, record: Record) -> None:
        """The outcome goes out to a client that is there: start the shorter clock."""
        self._store.delivered(record, self._clock.now())

    def queue_state(self, record: Record) -> tuple[str, str | None]:
        """What the SDK shows its user while a sample is not finished: state and reason."""
        if record.unavailable_since is not None:
            return "paused_capacity", "the inference server is not available; trying again"
        if record.state is State.QUEUED:
            return "paused_capacity", "waiting for a free slot on the inference server"
        return "active", None

    # --- cancel, time and stopping ---------------------------------------------------------------

    def cancel_session(self, sampling_session_id: str) -> None:
        """End the upstream work of a sampling session and drop its results: its ids answer 410."""
        for record in self._store.of_session(sampling_session_id):
            self._evict(record)
            self._dispatch.abort(record)

    def tick(self, now: float) -> None:
        """Everything that time alone does: end holds, expire results, fail overdue work."""
        for waker in self._holds.due(now, SWEEP_BUDGET):
            self._wake_soon(waker)
        for record in self._store.sweep(now, SWEEP_BUDGET).overdue:
            error = Overdue(f"no answer within {self._upstream.read_timeout_s:g} s")
            self._fail(record, Failure(str(error), error.category))
            self._dispatch.abort(record)
        self._dispatch.tick(now)

    def _wake_soon(self, waker: Waker) -> None:
        """Wake a parked poll, at most so many in one turn of the loop.

        A burst of completions must not keep health checks and submits waiting.
        """
        self._wakes.append(waker)
        if len(self._wakes) == 1:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(min(len(self._wakes), self._wakes_per_turn)):
            self._wakes.popleft().wake()
        if self._wakes:
            asyncio.get_running_loop().call_soon(self._wake_some)

    @property
    def stopping(self) -> bool:
        """Whether polls are no longer held because the process is about to stop."""
        return not self._holding

    def stop_holding(self) -> None:
        """Answer every parked poll now, and hold none any more: the process is stopping."""
        self._holding = False
        for waker in self._holds.due(float("inf"), len(self._holds)):
            self._wake_soon(waker)

    async def close(self) -> None:
        self.stop_holding()
        for record in self._store.unfinished():
            self._evict(record)
            self._dispatch.abort(record)
        await self._dispatch.close()
