"""Batched polls: one held retrieve_futures per sampler, its completions, acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from loadgen import rules
from loadgen.rules import Step
from loadgen.schedule import abandoned_after_s
from loadgen.session import Sampler
from loadgen.share import Share, now
from loadgen.wire import ABANDONED, OVERDUE, Limit, Pool

ACK_WITHIN_S: Final = 10.0
ACK_GATHER_S: Final = 0.05
"""The SDK acknowledges as soon as it gets to it; so long it takes where it is busy."""


class _Completion(msgspec.Struct):
    state: str
    request_id: str
    response_payload_uncompressed_size: int | None = None


class _Page(msgspec.Struct):
    completions: list[_Completion]
    cursor: int


class Poller:
    """Polls for one sampler as long as there is something to wait for or to acknowledge.

    A request id is in one place at a time, on its way down: waiting (or early, where its completion
    was read before the submit's answer), handed out, retrieved, acknowledged.
    """

    def __init__(
        self,
        share: Share,
        pool: Pool,
        sampler: Sampler,
        *,
        completed: Callable[[int, Sampler, str, int | None], None],
        poisoned: Callable[[int, Sampler], None],
    ) -> None:
        """completed: told row, sampler, id and size of what can be fetched.

        poisoned: told of each row whose outcome is that the SDK gave its session up.
        """
        self._share = share
        self._pool = pool
        self._sampler = sampler
        self._completed = completed
        self._poisoned = poisoned
        self._waiting: dict[str, int] = {}
        # Further samples that were given the id of one that waits: a fault of the server's.
        self._twins: dict[str, list[int]] = {}
        self._early: dict[str, int | None] = {}
        self._retrieved: dict[str, None] = {}
        self._reported: set[str] = set()
        self._cursor = 0
        self._acked_cursor = 0
        self._polls = 0
        self._bad = 0
        self._busy = False
        self._poison: str | None = None
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<Poller {self._sampler!r} {len(self._waiting)} waiting>"

    @property
    def done(self) -> bool:
        """Whether there is nothing to poll for and nothing to acknowledge."""
        if self._poison is not None:
            return True
        return not (self._waiting or self._retrieved or self._cursor > self._acked_cursor)

    def accepted(self, row: int, request_id: str) -> None:
        """A submit was answered."""
        if self._poison is not None:
            self._give_up(row)
        elif request_id in self._early:
            self._completed(row, self._sampler, request_id, self._early.pop(request_id))
        elif request_id in self._reported:
            self._completed(row, self._sampler, request_id, None)
        elif request_id in self._waiting:
            self._twins.setdefault(request_id, []).append(row)
        else:
            self._waiting[request_id] = row
            if not self._busy:
                self._wake()

    def retrieved(self, request_id: str) -> None:
        """A result is here and can be acknowledged."""
        self._retrieved[request_id] = None
        if not self._busy:
            self._wake()

    def _wake(self) -> None:
        if not self._busy and not self.done:
            self._busy = True
            if self._waiting:
                self._poll()
            else:
                self._loop.call_later(ACK_GATHER_S, self._poll)

    def _poll(self) -> None:
        acks = list(self._retrieved)
        body: dict[str, object] = {
            "target": {
                "type": "sampling_session",
                "sampling_session_id": self._sampler.target,
                "cloned_sampler_id": self._sampler.clone,
            },
            "prev_cursor": self._cursor,
            "retrieved_request_ids": acks,
        }
        limit: Limit | None = None
        if not self._waiting:
            body["timeout"] = 0
            limit = (ACK_WITHIN_S, OVERDUE)
        elif self._share.plan.abandon:
            after_s = abandoned_after_s(self._share.plan, self._sampler.index, self._polls)
            limit = None if after_s is None else (after_s, ABANDONED)
        self._polls += 1
        self._share.traffic.polls += 1
        self._pool.ask(
            self._share.api.post(b"retrieve_futures", msgspec.json.encode(body)),
            partial(self._answered, acks, self._cursor),
            limit,
        )

    def _answered(self, acks: list[str], cursor: int, status: int, _: bytes, body: bytes) -> None:
        traffic = self._share.traffic
        traffic.polls_overdue += status == OVERDUE
        traffic.polls_abandoned += status == ABANDONED
        step = rules.poll(status)
        if step is Step.COUNT and self._bad < rules.BAD_REQUESTS:
            self._bad += 1
            step = Step.BACK_OFF
        if step is Step.TAKE:
            self._page(acks, cursor, body)
        elif step is Step.BACK_OFF or step is Step.PAUSE:
            if status != ABANDONED:
                self._share.retried(rules.retry_class(status))
            wait_s = rules.LONG_PAUSE_S if step is Step.PAUSE else rules.PAUSE_S
            self._loop.call_later(wait_s, self._rest)
        else:
            self._poisoned_by(f"{status} {self._share.api.secret.excerpt(body)}")

    def _rest(self) -> None:
        self._busy = False
        self._wake()

    def _page(self, acks: list[str], cursor: int, body: bytes) -> None:
        self._bad = 0
        try:
            page = _page.decode(body)
        except msgspec.MsgspecError as error:
            self._poisoned_by(f"its page: {error}")
            return
        traffic = self._share.traffic
        traffic.acknowledged += len(acks)
        traffic.polls_empty += not page.completions
        for request_id in acks:
            self._retrieved.pop(request_id, None)
        self._acked_cursor = max(self._acked_cursor, cursor)
        self._cursor = page.cursor
        for completion in page.completions:
            if completion.state not in ("finished", "failed"):
                self._poisoned_by(f"{completion.request_id} is {completion.state!r}")
                return
            self._reported_one(completion)
        self._rest()

    def _reported_one(self, completion: _Completion) -> None:
        request_id = completion.request_id
        if request_id in self._reported:
            self._share.traffic.completions_repeated += 1
            return
        self._reported.add(request_id)
        failed = completion.state == "failed"
        size = None if failed else completion.response_payload_uncompressed_size
        row = self._waiting.pop(request_id, None)
        if row is None:
            self._early[request_id] = size
        else:
            for each in (row, *self._twins.pop(request_id, ())):
                self._completed(each, self._sampler, request_id, size)

    def _poisoned_by(self, why: str) -> None:
        self._poison = why
        self._share.ledger.problem(f"sampling session {self._sampler.target} given up: {why}")
        waiting, self._waiting = self._waiting, {}
        twins, self._twins = self._twins, {}
        for row in (*waiting.values(), *chain.from_iterable(twins.values())):
            self._give_up(row)

    def _give_up(self, row: int) -> None:
        self._share.ledger.fail(row, "refused.poisoned", now())
        self._poisoned(row, self._sampler)


_page: Final = msgspec.json.Decoder(_Page)
