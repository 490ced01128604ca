"""Submits: asample, at most 400 at a time, with the SDK's back-pressure and repetitions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from loadgen import rules
from loadgen.rules import Step
from loadgen.session import Sampler
from loadgen.share import Line, Share, now
from loadgen.wire import Pool


class _Promise(msgspec.Struct):
    request_id: str
    sample_sequence_ids: list[str]


class _Again:
    """A submit that must be repeated: under which seq_id, how often already, since when."""

    __slots__ = ("attempt", "seq_id", "since")

    def __init__(self, seq_id: int, since: float) -> None:
        self.seq_id = seq_id
        self.attempt = 0
        self.since = since


class Submitter:
    """Takes rows as they are due; tells each id to `accepted`, or the ledger why there is none.

    accepted: to be set; told row, sampler and request id.
    """

    def __init__(
        self,
        share: Share,
        pool: Pool,
        *,
        in_flight: int,
        refused: Callable[[int, Sampler], None],
    ) -> None:
        """in_flight: samples of one sampler at a time, 0 for no bound.

        refused: told of a row that has its outcome.
        """
        self._share = share
        self._samples = share.samples
        self._samplers = share.samplers
        self._first, self._stride = share.process, share.plan.processes
        self._ledger = share.ledger
        self._sent = share.ledger.sent
        self._traffic = share.traffic
        self._pool = pool
        self._in_flight = in_flight
        self.accepted: Callable[[int, Sampler, str], None] = _nobody
        self._refused = refused
        self._head = share.api.head(b"asample")
        self._line = Line(share.plan.submitters, share.flags.sample_dispatch_bytes_semaphore_size)
        self._blocked: dict[Sampler, deque[int]] = {}
        self._again: dict[int, _Again] = {}
        self._paused_until = 0.0
        self._backoff_until = 0.0
        self._resume: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def due(self, row: int) -> None:
        """A sample is due: it is sent as soon as the gates let it."""
        sampler, line = self._samplers[row % len(self._samplers)], self._line
        if self._in_flight and sampler.in_flight >= self._in_flight:
            self._blocked.setdefault(sampler, deque()).append(row)
            return
        sampler.in_flight += 1
        if line.rows or self._backoff_until or line.taken >= line.places or line.balance < 0:
            line.rows.append(row)
            self._pump()
        else:
            self._send(row, sampler, 1)

    def ended(self, sampler: Sampler) -> None:
        """One of a sampler's samples was taken off its `in_flight`."""
        if self._blocked and (blocked := self._blocked.get(sampler)):
            self.due(blocked.popleft())

    def submit(self, row: int) -> None:
        """Send what was counted in flight before: again after a pause, or after 410."""
        self._line.rows.append(row)
        self._pump()

    def _pump(self) -> None:
        """Start what may start."""
        line = self._line
        if not line.rows:
            return
        factor = 1
        if self._backoff_until:
            time = now()
            if time < self._paused_until:
                self._resume_at(self._paused_until, time)
                return
            if time < self._backoff_until:
                factor = rules.BACKOFF_BYTES_FACTOR
            else:
                self._backoff_until = 0.0
        while line.rows and line.taken < line.places and line.balance >= 0:
            if factor > 1 and line.taken >= rules.SUBMITS_IN_BACKOFF:
                self._resume_at(self._backoff_until, now())
                return
            row = line.rows.popleft()
            self._send(row, self._samplers[row % len(self._samplers)], factor)

    def _resume_at(self, due: float, time: float) -> None:
        if self._resume is None:
            self._resume = self._loop.call_later(max(0.0, due - time), self._resumed)

    def _resumed(self) -> None:
        self._resume = None
        self._pump()

    def _send(self, row: int, sampler: Sampler, factor: int) -> None:
        samples, line = self._samples, self._line
        number = self._first + row * self._stride
        again = self._again.get(row) if self._again else None
        if again is None:
            seq_id = sampler.next_seq_id
            sampler.next_seq_id = seq_id + 1
        else:
            seq_id = again.seq_id
        cost = rules.BYTES_PER_TOKEN * samples.prompt_tokens[number] * factor
        line.taken += 1
        line.balance -= cost
        request = samples.request(number, self._head, sampler.target_bytes, seq_id)
        if not self._sent[row]:
            self._sent[row] = now()
        self._traffic.submits += 1
        self._pool.ask(request, partial(self._answered, row, sampler, seq_id, cost))

    def _answered(
        self, row: int, sampler: Sampler, seq_id: int, cost: int, status: int, _: bytes, body: bytes
    ) -> None:
        line = self._line
        line.taken -= 1
        line.balance += cost
        if status != 200:
            self._not_promised(row, sampler, seq_id, status, body)
        elif (request_id := self._promised(row, sampler, body)) is not None:
            self.accepted(row, sampler, request_id)
        if line.rows:
            self._pump()

    def _not_promised(
        self, row: int, sampler: Sampler, seq_id: int, status: int, body: bytes
    ) -> None:
        step = rules.submit(status, len(body))
        if step is Step.FATAL:
            self._again.pop(row, None)
            self._refuse(row, sampler, str(status), body)
            return
        self._share.retried(rules.retry_class(status))
        again = self._again.setdefault(row, _Again(seq_id, now()))
        if step is Step.PAUSE_ALL:
            self._pause_all(row)
            self._line.rows.appendleft(row)
            return
        wait_s = rules.backoff_s(again.attempt)
        again.attempt += 1
        if now() - again.since > rules.RETRY_WITHIN_S:
            del self._again[row]  # it starts over with a seq_id of its own
        self._loop.call_later(wait_s, self.submit, row)

    def _pause_all(self, row: int) -> None:
        estimate = rules.BYTES_PER_TOKEN * self._samples.prompt_tokens[self._share.number(row)]
        self._paused_until = max(self._paused_until, now() + rules.pause_s(estimate))
        self._backoff_until = self._paused_until + rules.BACKOFF_LASTS_S

    def _promised(self, row: int, sampler: Sampler, body: bytes) -> str | None:
        """The id, noted in the ledger; None where the SDK would not take the reply."""
        if self._again:
            self._again.pop(row, None)
        try:
            promise = _promise.decode(body)
        except msgspec.MsgspecError:
            self._refuse(row, sampler, "reply", body)
            return None
        if len(promise.sample_sequence_ids) != 1:
            self._refuse(row, sampler, "sequence_ids", body)
            return None
        ledger, request_id = self._ledger, promise.request_id
        if ledger.ids[row] is None:
            ledger.ids[row] = request_id
            ledger.accepted_count += 1
        else:
            ledger.named(row, request_id)
        ledger.accepted[row] = now()
        return request_id

    def _refuse(self, row: int, sampler: Sampler, why: str, body: bytes) -> None:
        shown = self._share.api.secret.excerpt(body)
        self._share.ledger.fail(row, f"refused.{why}", now(), shown)
        self._refused(row, sampler)


def _nobody(row: int, sampler: Sampler, request_id: str) -> None:
    raise RuntimeError(f"nobody waits for {request_id}, row {row} of {sampler!r}")


_promise: Final = msgspec.json.Decoder(_Promise)
