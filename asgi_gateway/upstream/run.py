"""One record on its way through an upstream."""

from collections.abc import Callable
from typing import Protocol

from asgi_gateway.errors import Interrupted
from asgi_gateway.ids import names_other_request
from asgi_gateway.store.records import Record
from asgi_gateway.upstream.exchange import Answer, Exchange
from asgi_gateway.upstream.standing import Upstream
from asgi_gateway.upstream.verdict import judge


class Runs(Protocol):
    """Whose it is; see `Exchange`."""

    @property
    def answer_cap(self) -> Callable[[Record], int]: ...

    def answering(self, run: "Run") -> None: ...

    def answered(self, run: "Run", answer: Answer) -> None: ...

    def failed(self, run: "Run", error: Exception) -> None: ...


class Run(Exchange):
    """turn: of the upstream's breaker when it started. fresh: it needs a new connection.
    answered_at: when the whole answer had come, 0 before."""

    __slots__ = ("_runs", "answered_at", "fresh", "record", "turn", "upstream")

    def __init__(self, runs: Runs, record: Record, upstream: Upstream) -> None:
        self.work = None
        self._runs = runs
        self.record = record
        self.upstream = upstream
        self.turn = 0
        self.answered_at = 0.0
        self.fresh = False

    def answering(self) -> None:
        self._runs.answering(self)

    def answered(self, answer: Answer) -> None:
        self._runs.answered(self, answer)

    def failed(self, error: Exception) -> None:
        self._runs.failed(self, error)

    def answer_cap(self) -> int:
        return self._runs.answer_cap(self.record)


def completion(record: Record, answer: Answer) -> bytes:
    """The body of a completion of this record.

    Raises:
        UpstreamError: it is none, or another's.
    """
    body = answer.body()
    failure = judge(answer.status, body, answer.retry_after)
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # else it and this frame, with the body, hold each other
    if names_other_request(body, record.request_id):
        raise Interrupted("the upstream answered another request on this connection")
    return body
