"""The words of the ledger: how a sample ends, what may be wrong, what is sent on the way."""

from __future__ import annotations

from typing import Final

import msgspec

WRONG: Final = ("unreadable", "identity", "tokens", "logprobs", "dtype", "sequences", "stop_reason")
"""What can be wrong with a result that was delivered; the first that applies counts.

unreadable  no SampleResponse       sequences   not as many as asked
dtype       not whole 4-byte items  tokens      more or fewer tokens than were asked
logprobs    not one for each token, or other values than the upstream's
identity    tokens of another sample            stop_reason  neither of the two, or the wrong one
"""

RETRIES: Final = ("drop", "timeout", "402", "400", "408", "409", "410", "429", "5xx")
"""Classes of repeated requests. 410 is a sample that was submitted again."""


class Outcomes(msgspec.Struct, kw_only=True):
    """Each sample ends in exactly one: the first five sum to the plan's samples.

    failed: error results by category (user, server, unknown). refused: by the fatal status of a
    submit or a poll, as "404"; "poisoned" where the SDK gives the sampling session up. wrong: by
    kind, see WRONG. lost: no outcome within the plan's time.
    """

    succeeded: int = 0
    failed: dict[str, int] = {}
    refused: dict[str, int] = {}
    wrong: dict[str, int] = {}
    lost: int = 0

    @property
    def total(self) -> int:
        parts = (self.failed, self.refused, self.wrong)
        return self.succeeded + self.lost + sum(sum(part.values()) for part in parts)


class Doubled(msgspec.Struct, kw_only=True):
    """What happened twice and should not have.

    request_ids: samples that were given another sample's id. delivered: results that came again
    after the sample's outcome. results: samples with the tokens of another one of ours, which
    had them too. upstream: request ids that the upstream was asked for more than once, beyond what
    faults explain; null without the stand-in's record.
    """

    request_ids: int = 0
    delivered: int = 0
    results: int = 0
    upstream: int | None = None

    @property
    def total(self) -> int:
        return self.request_ids + self.delivered + self.results + (self.upstream or 0)


class Traffic(msgspec.Struct, kw_only=True):
    """What was sent on the way to the outcomes.

    retries: by class, see RETRIES. resubmitted: after 410. polls_empty: held until the server said
    try again. polls_overdue: given up at the client's own limit. polls_abandoned: given up because
    the plan said so. completions_repeated: reported again above an acknowledged cursor.
    """

    submits: int = 0
    polls: int = 0
    polls_empty: int = 0
    polls_overdue: int = 0
    polls_abandoned: int = 0
    fetches: int = 0
    metadata: int = 0
    resubmitted: int = 0
    acknowledged: int = 0
    completions_repeated: int = 0
    connections: int = 0
    reconnects: int = 0
    heartbeats: int = 0
    heartbeats_failed: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    retries: dict[str, int] = {}
