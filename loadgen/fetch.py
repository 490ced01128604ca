"""Results: retrieve_future, held open for one sample or asked once its completion is reported."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from loadgen import rules
from loadgen.rules import Step
from loadgen.schedule import abandoned_after_s
from loadgen.session import Sampler
from loadgen.share import Line, Share, now
from loadgen.wire import ABANDONED, OVERDUE, PROTOBUF, Limit, Pool

CATEGORIES: Final = ("user", "server", "unknown")

_REST: Final = b'{"request_id":%b,"allow_metadata_only":'
_BODY: Final = tuple(
    (len(_REST % b"") + len(rest), b"%b%d\r\ncontent-length: %d\r\n\r\n" + _REST + rest)
    for rest in (b"false}", b"true}")
)
_encode: Final = msgspec.json.encode


class _Fetch(msgspec.Struct, gc=False):
    """One sample's result on its way here. size: bytes reserved for it, once announced.

    metadata: whether a large result may be announced first. bad: 400s in a row.
    """

    row: int
    sampler: Sampler
    request_id: str
    size: int
    metadata: bool
    sent: float = 0.0
    polls: int = 0
    attempt: int = 0
    bad: int = 0


class Fetcher:
    """Asks for results until each sample has its outcome, and writes it into the ledger."""

    def __init__(
        self,
        share: Share,
        pool: Pool,
        *,
        places: int,
        held: bool,
        ended: Callable[[int, Sampler, str], None],
        gone: Callable[[int], None],
    ) -> None:
        """places: requests at a time. held: whether one is a poll that the server holds.

        ended: told row, sampler and request id of what has its outcome. gone: told of a row that
        must be submitted again.
        """
        self._share = share
        self._pool = pool
        self._held = held
        self._ended = ended
        self._gone = gone
        self._line = Line(places, share.flags.inflight_response_bytes_semaphore_size)
        self._waiting: deque[_Fetch] = deque()
        self._outputs = share.samples.output_tokens
        self._expected = share.expected
        self._ledger = share.ledger
        self._traffic = share.traffic
        self._first, self._stride = share.process, share.plan.processes
        self._head = share.api.head(
            b"retrieve_future",
            PROTOBUF,
            b"x-tinker-request-type: Sample\r\nx-tinker-request-iteration: ",
        )
        self._resubmits: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()

    def fetch(self, row: int, sampler: Sampler, request_id: str, size: int | None = None) -> None:
        """size: of the result where the server told it, which spares the metadata."""
        fetch, line = _Fetch(row, sampler, request_id, size or 0, not size), self._line
        if self._waiting or line.taken >= line.places or line.balance < 0:
            self._again(fetch)
        else:
            self._send(fetch)

    def _again(self, fetch: _Fetch) -> None:
        self._waiting.append(fetch)
        self._pump()

    def _pump(self) -> None:
        waiting, line = self._waiting, self._line
        while waiting and line.taken < line.places and line.balance >= 0:
            self._send(waiting.popleft())

    def _send(self, fetch: _Fetch) -> None:
        share, traffic, line = self._share, self._traffic, self._line
        line.taken += 1
        line.balance -= fetch.size
        limit: Limit | None = None
        if self._held:
            traffic.polls += 1
            if share.plan.abandon:
                after_s = abandoned_after_s(share.plan, share.number(fetch.row), fetch.polls)
                limit = None if after_s is None else (after_s, ABANDONED)
        else:
            traffic.fetches += 1
        request_id = _encode(fetch.request_id)
        fixed, body = _BODY[fetch.metadata]
        request = body % (self._head, fetch.polls, fixed + len(request_id), request_id)
        fetch.polls += 1
        fetch.sent = now()
        self._pool.ask(request, partial(self._answered, fetch), limit)

    def _answered(self, fetch: _Fetch, status: int, kind: bytes, body: bytes) -> None:
        line, row = self._line, fetch.row
        line.taken -= 1
        line.balance += fetch.size
        expected = self._expected
        if expected is not None and body == expected[row] and PROTOBUF in kind:
            ledger = self._ledger
            ledger.fetched[row] = fetch.sent
            ledger.succeed(row, self._outputs[self._first + row * self._stride], 0, now())
            self._ended(row, fetch.sampler, fetch.request_id)
        else:
            self._stepped(fetch, status, kind, body)
        if self._waiting:
            self._pump()

    def _stepped(self, fetch: _Fetch, status: int, kind: bytes, body: bytes) -> None:
        """By the rules for the status."""
        step = rules.fetch(status)
        if step is Step.TAKE:
            self._taken(fetch, kind, body)
        elif step is Step.AT_ONCE:
            if status == 408:
                self._share.traffic.polls_empty += 1
            fetch.bad = 0
            self._repeat(fetch, status, 0.0)
        elif step is Step.BACK_OFF:
            self._repeat(fetch, status, rules.backoff_s(fetch.attempt))
            fetch.attempt += 1
        elif step is Step.PAUSE:
            self._repeat(fetch, status, rules.LONG_PAUSE_S)
        elif step is Step.RESUBMIT:
            self._resubmit(fetch)
        elif step is Step.COUNT and fetch.bad < rules.BAD_REQUESTS:
            fetch.bad += 1
            self._repeat(fetch, status, 0.0)
        else:
            self._fail(fetch, f"refused.{status}", body)

    def _repeat(self, fetch: _Fetch, status: int, wait_s: float) -> None:
        traffic = self._share.traffic
        traffic.polls_overdue += status == OVERDUE
        traffic.polls_abandoned += status == ABANDONED
        if status != 408 and status != ABANDONED:
            self._share.retried(rules.retry_class(status))
        if wait_s:
            self._loop.call_later(wait_s, self._again, fetch)
        else:
            self._again(fetch)

    def _resubmit(self, fetch: _Fetch) -> None:
        self._share.retried("410")
        self._share.traffic.resubmitted += 1
        attempt = self._resubmits.get(fetch.row, 0)
        self._resubmits[fetch.row] = attempt + 1
        self._loop.call_later(rules.resubmit_s(attempt), self._gone, fetch.row)

    def _taken(self, fetch: _Fetch, kind: bytes, body: bytes) -> None:
        """A 200: the result, or one of three things that are said in JSON."""
        fetch.attempt = 0
        share = self._share
        if PROTOBUF in kind:
            finding = share.samples.check(share.number(fetch.row), body)
            share.ledger.fetched[fetch.row] = fetch.sent
            if finding.wrong is None:
                share.ledger.succeed(fetch.row, finding.tokens, finding.digest, now())
                self._ended(fetch.row, fetch.sampler, fetch.request_id)
            else:
                self._fail(fetch, f"wrong.{finding.wrong}", digest=finding.digest)
            return
        said = _said(body)
        if said.get("type") == "try_again":
            share.traffic.polls_empty += 1
            self._again(fetch)
        elif said.get("status") == "complete_metadata" and fetch.metadata:
            share.traffic.metadata += 1
            fetch.metadata = False
            size = said.get("response_payload_size")
            fetch.size = size if isinstance(size, int) and size > 0 else 0
            self._again(fetch)
        elif "error" in said:
            category = said.get("category")
            name = category if category in CATEGORIES else "unknown"
            self._fail(fetch, f"failed.{name}", body)
        else:  # the SDK takes results as protobuf only, and metadata only once
            self._fail(fetch, "wrong.unreadable", body)

    def _fail(self, fetch: _Fetch, name: str, body: bytes = b"", digest: int = 0) -> None:
        shown = f"{fetch.request_id} {self._share.api.secret.excerpt(body)}"
        self._share.ledger.fail(fetch.row, name, now(), shown, digest)
        self._ended(fetch.row, fetch.sampler, fetch.request_id)


def _said(body: bytes) -> dict[str, Any]:
    try:
        said: object = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return {}
    return said if isinstance(said, dict) else {}
