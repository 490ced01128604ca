"""The upstream answers, fails and breaks."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from asgi_gateway.errors import Interrupted, StaleConnection, Unavailable
from tests.support.inprocess import Sent
from tests.support.promised.books import Books
from tests.support.promised.samples import GONE, OPEN
from tests.support.upstream import completion

# What an upstream may do; `_answer` knows whether the sample is then over, and as what.
OUTCOMES = (
    "result", "result", "result", "unreadable", "refused", "aborted", "bad gateway", "reset",
    "stale", "engine fault", "unavailable", "away",
)  # fmt: skip


class Answering(Books):
    """Each outcome of a sample at its upstream, and the tries that follow it."""

    @precondition(lambda self: self.upstream.under_way)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def upstream_answers(self, data: Any, outcome: str) -> None:
        sent = data.draw(st.sampled_from(self.upstream.under_way))
        self._answer(sent, outcome)

    def _answer(self, sent: Sent, outcome: str) -> None:
        sample = next(s for s in self.samples if s.request_id == sent.request_id)
        assert sample.state == OPEN or sample.loose, "it runs and is over"
        state = "lost"
        if outcome == "result":
            self.tokens += 2
            state, sample.first_token = "result", self.tokens
        elif outcome in ("unreadable", "refused"):
            state = "failed"
        elif outcome in ("unavailable", "away"):
            sample.again += 1
            state = OPEN
        elif outcome == "engine fault":
            sample.engine_faults += 1
            state = OPEN if sample.engine_faults == 1 else "failed"
            sample.again += state == OPEN
        elif outcome == "stale" and not sent.fresh:
            sample.again += 1
            state = OPEN
        if not (sample.loose and sample.state == GONE):
            sample.state = state

        async def answer() -> None:
            if outcome == "result":
                sent.complete(sample.first_token)
            elif outcome == "unreadable":
                sent.answer(200, b'{"choices":[{}]}')
            elif outcome == "refused":
                sent.answer(400, {"error": {"message": "no"}})
            elif outcome == "aborted":
                sent.answer(200, completion([1], [-1.0], finish_reason="abort"))
            elif outcome == "bad gateway":
                sent.answer(502, b"bad gateway")
            elif outcome == "reset":
                sent.fail(Interrupted("it broke"))
            elif outcome == "stale":
                sent.fail(StaleConnection("it was closed"))
            elif outcome == "engine fault":
                sent.answer(500, {"error": {"message": "engine"}})
            elif outcome == "unavailable":
                sent.answer(503, {"detail": "busy"}, "1")
            else:
                sent.fail(Unavailable("nobody there"))

        self.run(answer())
        self._count_runs()
        self._parked_are_answered()
