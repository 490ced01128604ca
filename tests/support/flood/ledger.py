"""The ledger: each sample ends in exactly one outcome; and what was counted on the way."""

import asyncio
import enum
from collections import Counter
from typing import Final

import msgspec

PROBLEMS_KEPT: Final = 20


class Outcome(enum.Enum):
    """How a sample ended for its client."""

    DELIVERED = "delivered"
    WRONG = "wrong"
    FAILED = "failed"
    REFUSED = "refused"


class Tally(msgspec.Struct):
    """What happened to one client on the way, counted from its start."""

    connections: int = 0
    reconnects: int = 0
    dropped: int = 0
    submits_429: int = 0
    submits_repeated: int = 0
    polls: int = 0
    polls_empty: int = 0
    polls_abandoned: int = 0
    polls_repeated: int = 0
    fetches_408: int = 0
    fetches_repeated: int = 0
    resubmitted: int = 0
    acknowledged: int = 0
    completions_repeated: int = 0
    heartbeats: int = 0
    heartbeats_failed: int = 0

    def since(self, earlier: "Tally") -> "Tally":
        """What was counted after a copy was made."""
        before = msgspec.structs.asdict(earlier)
        return Tally(**{k: n - before[k] for k, n in msgspec.structs.asdict(self).items()})


class Ledger:
    """What became of the samples of one cycle."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.problems: list[str] = []
        self.delivered_again = 0
        self.shared_ids = 0
        self.all_accepted = asyncio.Event()
        self.all_settled = asyncio.Event()
        self._number_of: dict[str, int] = {}
        self._accepted: set[int] = set()
        self._outcomes: dict[int, Outcome] = {}

    def accepted(self, number: int, request_id: str) -> None:
        """A submit was answered with an id; another sample's id would be a mix-up."""
        if self._number_of.setdefault(request_id, number) != number:
            self.shared_ids += 1
            self.problem(f"{request_id} was given to two samples")
        self._accepted.add(number)
        if len(self._accepted) == self.count:
            self.all_accepted.set()

    def settle(self, number: int, outcome: Outcome, problem: str | None = None) -> None:
        """The end of a sample, which comes once."""
        if problem is not None:
            self.problem(f"sample {number} {outcome.value}: {problem}")
        if number in self._outcomes:
            self.delivered_again += 1
            self.problem(f"sample {number} {outcome.value} after {self._outcomes[number].value}")
            return
        self._outcomes[number] = outcome
        if len(self._outcomes) == self.count:
            self.all_accepted.set()  # refused ones never were
            self.all_settled.set()

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(text)

    def outcomes(self) -> Counter[str]:
        """How many ended how; `lost` are those that did not end."""
        found = Counter({outcome.value: 0 for outcome in Outcome})
        found.update(outcome.value for outcome in self._outcomes.values())
        found["lost"] = self.count - len(self._outcomes)
        return found

    def upstream_view(self, seen: dict[str, int]) -> "UpstreamView":
        """The same samples as the upstream saw them: request id -> how often."""
        return UpstreamView(
            doubled=sum(seen.get(request_id, 0) > 1 for request_id in self._number_of),
            missing=sum(request_id not in seen for request_id in self._number_of),
            ids=len(self._number_of),
        )


class UpstreamView(msgspec.Struct):
    """Of the ids that clients hold: how many there are, reached the upstream twice, or never."""

    doubled: int
    missing: int
    ids: int
