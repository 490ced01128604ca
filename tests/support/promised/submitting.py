"""Clients submit samples, and submit them again."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.support.promised.books import Books
from tests.support.promised.process import MAX_IN_FLIGHT
from tests.support.promised.samples import CLONE, GONE, OPEN, Sample


class Submitting(Books):
    """An accepted submit is a promise; a repeat of it is the same promise."""

    @rule(
        data=st.data(),
        seq_id=st.integers(0, 3),
        clone=st.sampled_from([0, 0, 1]),
        tokens=st.sampled_from([1, 1, 1, 2]),
    )
    def submit(self, data: Any, seq_id: int, clone: int, tokens: int) -> None:
        """New, a repeat, or another body under a number that was used."""
        target = data.draw(st.sampled_from(self.targets))
        self._submit_one(target, clone * CLONE + seq_id, tokens)

    def _submit_one(self, target: str, seq_id: int, tokens: int) -> None:
        same = [
            s for s in self.samples if (s.target, s.seq_id) == (target, seq_id) and s.state != GONE
        ]
        assert len(same) <= 1
        known = same[0] if same else None
        answer = self.run(self._submit(target, seq_id, tokens))
        if answer.status == 429:
            assert known is None or known.state == "lost" or known.loose
            in_flight = [s for s in self.samples if s.state == OPEN or s.loose]
            assert len(in_flight) >= MAX_IN_FLIGHT
            return
        if answer.status == 422:
            earlier = [s for s in self.samples if (s.target, s.seq_id) == (target, seq_id)]
            assert any(s.tokens != tokens for s in earlier if s is known or s.loose)
            return
        assert answer.status == 200, answer.body
        request_id = answer.json()["request_id"]
        if known is None or known.loose:
            self._accepted(request_id, target, seq_id, tokens)
            return
        assert known.tokens == tokens, "another body was taken for the same sample"
        assert request_id == known.request_id
        if known.state == "lost":
            self._accepted(request_id, target, seq_id, tokens)

    def _accepted(self, request_id: str, target: str, seq_id: int, tokens: int) -> None:
        """A promise; under an id that is known it takes the place of the one that was lost."""
        for sample in self.samples:
            if sample.request_id != request_id:
                if (sample.target, sample.seq_id) == (target, seq_id):
                    sample.state = GONE  # its time was over, or this were another body
            else:
                if sample.loose and sample.state != GONE:
                    return  # found as it was, or accepted again: both are good
                sample.state = GONE
        revived = any(s.request_id == request_id for s in self.samples)
        self.samples = [s for s in self.samples if s.request_id != request_id]
        self.samples.append(Sample(request_id, target, seq_id, tokens, revived=revived))
        for poller in self.pollers.values():
            poller.told.discard(request_id)
        self._count_runs()

    @initialize(seq_ids=st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
    def begin(self, seq_ids: list[int]) -> None:
        for seq_id in seq_ids:
            self._submit_one(self.targets[0], seq_id, 1)
