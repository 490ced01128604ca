"""The run half of the hot path: a record goes upstream, comes back, and is settled.

Every run ends in exactly one settlement, or back in line. What an upstream outcome means is in
`docs/behaviour.md`; that it happens on every path is this file's affair.
"""

import asyncio
import itertools
from collections import deque
from typing import Final

from asgi_gateway.admission import Admission
from asgi_gateway.clock import Clock
from asgi_gateway.codec.decode import Decoder
from asgi_gateway.codec.encode import encode
from asgi_gateway.delivery import Delivery
from asgi_gateway.errors import Interrupted, StaleConnection, Unavailable, UpstreamError
from asgi_gateway.metrics import Metrics
from asgi_gateway.outcomes import Outcomes
from asgi_gateway.settings import Settings, UpstreamSettings
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Failure, Record
from asgi_gateway.store.states import RUNNING
from asgi_gateway.turns import PerTurn
from asgi_gateway.upstream.answer_cap import AnswerCap
from asgi_gateway.upstream.breaker import CLOSED
from asgi_gateway.upstream.dispatch import Dispatch
from asgi_gateway.upstream.exchange import Answer, Exchange, Transport
from asgi_gateway.upstream.fleet import WAITED_IN_VAIN, Fleet
from asgi_gateway.upstream.remedy import OURS_RETRY_S, Remedies, Retry
from asgi_gateway.upstream.retrying import Repeats, RetryBudget
from asgi_gateway.upstream.run import Run, completion
from asgi_gateway.upstream.standing import Upstream

# Thousands of answers that come at once must not be one turn of the loop: reading a small one takes
# some 40 us, and so do these many bytes of a large one.
ANSWERS_PER_TURN: Final = 64
BYTES_PER_ANSWER: Final = 32 << 10
# Larger ones are read in steps, one at a time.
STEPS_FROM_BYTES: Final = 1 << 20
# Whether a sample is still ours is asked this often.
DOUBT_S: Final = 0.01
# Samples of a hung upstream that are given back in one tick.
GIVEN_BACK_PER_TICK: Final = 128


class Runs:
    """Sends records upstream in the order of the line and settles each on every path."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        store: MemoryStore,
        transport: Transport,
        delivery: Delivery,
        metrics: Metrics,
        outcomes: Outcomes,
        admission: Admission,
    ) -> None:
        self._clock = clock
        self._store = store
        self._transport = transport
        self._delivery = delivery
        self._metrics = metrics
        self._outcomes = outcomes
        self._traced = outcomes.traces.held
        self._silent_s = settings.upstream.silent_s
        self.answer_cap = AnswerCap(settings.upstream.answer_bytes, lambda: store.budget.max_bytes)
        self._budget = RetryBudget(settings.upstream.retry_budget)
        self._remedies = Remedies(settings.upstream)
        self._decoder = Decoder(settings.missing_logprobs)
        self._turn = PerTurn(ANSWERS_PER_TURN, self._read_on)
        # With what reading each costs of a turn.
        self._unread: deque[tuple[Run, Answer, int]] = deque()
        self._large: deque[tuple[Run, Answer]] = deque()
        self._reader: asyncio.Task[None] | None = None
        self.given_back = 0
        self.fleet = Fleet(
            settings.upstream, admission=admission, recovered=lambda: self.dispatch.recovered()
        )
        self.fleet.moved.append(self._remedies.move)
        self.dispatch = Dispatch(
            store,
            clock,
            transport,
            settings.upstream.max_connections,
            self._begin,
            upstreams=self.fleet,
            budget=self._budget,
            repeats=Repeats(settings.upstream.unavailable_grace_s),
            freed=self.fleet.ended,
            give_back=lambda record: self._give_back(record, Unavailable(WAITED_IN_VAIN)),
        )

    def reconfigure(self, settings: UpstreamSettings) -> None:
        self._silent_s = settings.silent_s
        self._budget.share = settings.retry_budget
        self._remedies.reconfigure(settings)
        self._transport.reconfigure(settings)
        self.fleet.reconfigure(settings)
        self.dispatch.reconfigure(settings.max_connections, settings.unavailable_grace_s)

    # --- out and back ----------------------------------------------------------------------------

    def _begin(self, record: Record) -> Exchange:
        """Send one RUNNING record upstream."""
        available = self.fleet.available
        upstream = available[0] if len(available) == 1 else self.fleet.choose(record)
        record.upstream = upstream.url
        run = Run(self, record, upstream)
        if upstream.breaker.state == CLOSED:
            upstream.in_flight += 1
            run.turn = upstream.breaker.turn
        else:
            run.turn = self.fleet.probes(upstream, run)
        self._send(run)
        return run

    def _send(self, run: Run) -> None:
        record = run.record
        try:
            self._transport.send(
                run,
                run.upstream.url,
                record.body or b"",
                request_id=record.request_id,
                affinity=self.fleet.affinity(record),
                fresh=run.fresh,
                more=self._outcomes.traces.headers(record) if self._traced else (),
            )
        except Exception as error:  # noqa: BLE001 - a bug; it must not end the line
            asyncio.get_running_loop().call_soon(self.failed, run, error)

    def answering(self, run: Run) -> None:
        self._store.drop_prompt(run.record)
        upstream = run.upstream
        if upstream.breaker.state != CLOSED:
            self.fleet.answered(upstream, run.turn, self._clock.now())

    def answered(self, run: Run, answer: Answer) -> None:
        """The upstream's whole answer has come; it is read now or in a later turn of the loop."""
        run.answered_at = self._clock.now()
        cost = 1 + answer.nbytes // BYTES_PER_ANSWER
        if not self._unread and self._store.in_doubt:
            self._unread.append((run, answer, cost))
            self._read_on()
        elif not self._unread and self._turn.take(cost):
            self._read(run, answer)
        else:
            self._unread.append((run, answer, cost))

    def _read_on(self) -> None:
        if self._store.in_doubt:
            asyncio.get_running_loop().call_later(DOUBT_S, self._read_on)
            return
        while self._unread and self._turn.take(self._unread[0][2]):
            run, answer, _ = self._unread.popleft()
            if self.dispatch.runs(run.record, run):  # or it was aborted meanwhile
                self._read(run, answer)

    def _read(self, run: Run, answer: Answer) -> None:
        """A result, or what the upstream says went wrong."""
        if answer.nbytes >= STEPS_FROM_BYTES:
            self._large.append((run, answer))
            if self._reader is None or self._reader.done():
                self._reader = asyncio.get_running_loop().create_task(self._read_large())
            return
        record = run.record
        try:
            body = completion(record, answer)
            arrays = self._decoder.decode(body, record.want, record.prompt_tokens)
            self._succeeded(run, encode(arrays))
        except Exception as error:  # noqa: BLE001 - told apart there
            self.failed(run, error)

    async def _read_large(self) -> None:
        """Read large answers one after the other; those aborted meanwhile are passed over."""
        while self._large:
            run, answer = self._large[0]
            try:
                result = await self._read_in_steps(run, answer)
                if result is not None:
                    self._succeeded(run, result)
            except Exception as error:  # noqa: BLE001 - told apart there
                self.failed(run, error)
            finally:
                self._large.popleft()

    async def _read_in_steps(self, run: Run, answer: Answer) -> bytes | None:
        """A result, with a turn of the loop between two steps; None once it is aborted."""
        record = run.record
        if not self.dispatch.runs(record, run):
            return None
        body = completion(record, answer)
        steps = self._decoder.steps(body, record.want, record.prompt_tokens)
        while self.dispatch.runs(record, run):
            try:
                next(steps)
            except StopIteration as done:
                return encode(done.value)
            await asyncio.sleep(0)
        return None

    def _succeeded(self, run: Run, result: bytes) -> None:
        record, now = run.record, self._clock.now()
        breaker = run.upstream.breaker
        if breaker.state == CLOSED:
            breaker.outcomes.first += 1
        else:
            self.fleet.answered(run.upstream, run.turn, now)
        self._budget.answered = True
        self._remedies.succeeded(record, run.upstream.url)
        if self._store.succeed(record, result, now):
            self._outcomes.settled(record, now, run.answered_at)
            self._delivery.settled(record)
        self._ended(run, "ok")

    def failed(self, run: Run, error: Exception) -> None:
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
            self._outcomes.bug(record, error)
            self.fail(record, Failure("an internal error of the gateway", "server"))
            self._ended(run, "bug")
            return
        now = self._clock.now()
        if self.fleet.failed(run.upstream, run.turn, error, now):
            self._budget.failed(now)
        if record.state is RUNNING:  # or it was cancelled or overdue meanwhile
            self._recover(record, error, run.upstream.url, now)
        self._ended(run, error.code)

    def _recover(self, record: Record, error: UpstreamError, url: str, now: float) -> None:
        if isinstance(error, Unavailable) and error.ours:
            self.dispatch.shut(now + OURS_RETRY_S)
        elif isinstance(error, Unavailable) and record.unavailable_since is None:
            self._transport.forget_addresses()
        remedy = self._remedies.after(record, error, url, now)
        if isinstance(remedy, Retry):
            self._retry(record, remedy, now)
        elif isinstance(remedy, Failure):
            self._outcomes.failed(record, remedy.text)
            self.fail(record, remedy)
        else:
            self._give_back(record, error)

    def _give_back(self, record: Record, error: UpstreamError) -> None:
        self._outcomes.handed_back(record, error)
        record.failure = Failure(str(error), error.category)
        self.evict(record, told=False)

    def _ended(self, run: Run, outcome: str) -> None:
        run.upstream.requests[outcome] += 1
        self.dispatch.ended(run.record, run)

    def abort(self, record: Record) -> None:
        """End the upstream request of a settled record, where it has one."""
        run = self.dispatch.abort(record)
        if isinstance(run, Run):
            run.upstream.requests["cancelled"] += 1

    # --- upstreams that come and go --------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Everything that time alone does to upstreams and the line."""
        self.fleet.tick(now, self._transport.is_sent)
        for upstream in self.fleet.silent(now, self._silent_s):
            if not self._transport.heard_within(upstream.url, self._silent_s):
                self._give_up(upstream)
        self.dispatch.tick(now)

    def _give_up(self, upstream: Upstream) -> None:
        """Give back what a hung upstream holds, some of it in each tick."""
        text = f"nothing came from the upstream for {self._silent_s:g} s, nor a health check"
        there = (
            record
            for record, run in self.dispatch.exchanges()
            if isinstance(run, Run) and run.upstream is upstream and record.state is RUNNING
        )
        for record in itertools.islice(there, GIVEN_BACK_PER_TICK):
            self.given_back += 1
            self._give_back(record, Interrupted(text))
            self.abort(record)

    def add_to(self, metrics: Metrics) -> None:
        self.fleet.add_to(metrics)
        name, text = "upstream_hung_total", "Samples handed back because their upstream hung."
        metrics.counter(name, text, lambda: self.given_back)
        self.dispatch.add_to(metrics)

    # --- settle ----------------------------------------------------------------------------------

    def _retry(self, record: Record, retry: Retry, now: float) -> None:
        if self._store.retry(record, now):
            self._metrics.retries[retry.reason] += 1
            self.dispatch.enqueue_again(
                record, not_before=retry.not_before, earliest=retry.earliest
            )

    def fail(self, record: Record, failure: Failure) -> None:
        if self._store.fail(record, failure, self._clock.now()):
            self.settled(record)

    def evict(self, record: Record, *, told: bool) -> None:
        unfinished = record.state <= RUNNING
        if self._store.evict(record, told=told) and unfinished:
            self.settled(record)

    def settled(self, record: Record) -> None:
        self._outcomes.settled(record, self._clock.now())
        self._delivery.settled(record)
