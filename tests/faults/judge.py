"""From loadgen's result and the stand-ins' records to what became of the samples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.request import urlopen

import msgspec

from loadgen.faults import Fault
from loadgen.results import Result
from loadgen.script import name_of
from tests.faults.found import Found

FAILS: Final = {
    "html": "server",
    "truncated": "server",
    "null": "server",
    "nan": "server",
    "no_logprobs": "server",
    "logprob_missing": "server",
    "nan_logprobs": "server",
    "bad_request": "user",
}
"""What ends in an error result, by category; after every other kind the sample succeeds."""

NOT_RUN: Final = {"RATE_LIMITED", "UNAVAILABLE", "REFUSE"}
"""The upstream did not run it, so it may be sent again as often as it takes."""

ONCE_MORE: Final = {"SERVER_ERROR", "CLOSE_BEFORE", "RESET_BEFORE"}
"""May be sent once more: after a JSON 500, or on a fresh connection where a reused one closed."""


class Record(msgspec.Struct, frozen=True):
    """What one life of the gateway asked the stand-ins for: counts and faults by request id.

    sessions: different request ids by `X-Session-ID`, which is session and seq_id of a sample.
    """

    requests: Mapping[str, int]
    faulted: Mapping[str, Sequence[str]]
    sessions: Mapping[str, int] = {}

    def since(self, before: Record) -> Record:
        """What came after `before`."""
        return Record(
            {
                name: count - before.requests.get(name, 0)
                for name, count in self.requests.items()
                if count > before.requests.get(name, 0)
            },
            {
                name: list(kinds)[len(before.faulted.get(name, ())) :]
                for name, kinds in self.faulted.items()
            },
            {
                name: count - before.sessions.get(name, 0)
                for name, count in self.sessions.items()
                if count > before.sessions.get(name, 0)
            },
        )

    @property
    def total(self) -> int:
        return sum(self.requests.values())

    @property
    def again(self) -> int:
        """Requests beyond one for each session and seq_id, and for each request id."""
        return self.total - len(self.requests) + more_than_one([self])


NOTHING: Final = Record({}, {})


def more_than_one(lives: Sequence[Record]) -> int:
    """Request ids beyond the first of each session and seq_id, over all lives together."""
    ids: Counter[str] = Counter()
    for record in lives:
        ids.update(record.sessions)
    return sum(ids.values()) - len(ids)


def asked(urls: Sequence[str]) -> Record:
    """What these stand-ins have seen together."""
    return together(
        *(
            Record(*(_json(f"{url}/{what}") for what in ("requests", "faulted", "sessions")))
            for url in urls
        )
    )


def cut_off(urls: Sequence[str]) -> Record:
    """What stand-ins have seen that are about to be ended: whoever has no answer yet loses its
    connection before a byte of one."""
    seen = asked(urls)
    open_ = {
        name: ["CLOSE_BEFORE"] for url in urls for name, hit in hits(url).items() if not hit[2]
    }
    return together(seen, Record({}, open_))


def together(*records: Record) -> Record:
    """What one life of the gateway asked several stand-ins for, or one and its successor."""
    requests: Counter[str] = Counter()
    sessions: Counter[str] = Counter()
    faulted: dict[str, list[str]] = {}
    for record in records:
        requests.update(record.requests)
        sessions.update(record.sessions)
        for request_id, kinds in record.faulted.items():
            faulted.setdefault(request_id, []).extend(kinds)
    return Record(requests, faulted, sessions)


def counts(url: str) -> dict[str, Any]:
    """A stand-in's counters."""
    return _json(f"{url}/counts")


def hits(url: str) -> dict[str, list[float]]:
    """By request id: arrivals, when it was first asked for and last answered, in seconds."""
    return _json(f"{url}/hits")


def _json(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=30) as answer:
        told: dict[str, Any] = json.load(answer)
    return told


def doubles(record: Record) -> int:
    """Requests upstream beyond what the table of outcomes allows, of one life of the gateway."""
    found = 0
    for request_id, count in record.requests.items():
        if count > 1:
            kinds = Counter(record.faulted.get(request_id, ()))
            again = sum(kinds[kind] for kind in NOT_RUN)
            again += sum(min(kinds[kind], 1) for kind in ONCE_MORE)
            found += max(0, count - 1 - again)
    return found


def judged(result: Result, *lives: Record) -> Found:
    """Every sample of a load in its place. lives: what each life of the gateway asked for."""
    outcomes, twice = result.outcomes, result.doubled
    found = Found(
        injected=sum(fault.injected for fault in result.faults),
        survived=outcomes.succeeded,
        lost=outcomes.lost + sum(outcomes.refused.values()),
        doubled=twice.request_ids + twice.delivered + twice.results + sum(map(doubles, lives)),
    )
    # A sample has another id upstream only where its client was told 410 and submitted it again.
    unasked = more_than_one(lives) - result.traffic.resubmitted
    if unasked > 0:
        found.doubled += unasked
        found.problems.append(f"{unasked} samples ran under another id that no client asked for")
    explained: Counter[str] = Counter()
    for fault in result.faults:
        category = FAILS.get(fault.kind)
        right = "succeeded" if category is None else f"failed.{category}"
        for outcome, count in fault.seen.items():
            if outcome == right and category is not None:
                explained[category] += count
            elif outcome not in (right, "no sample", "lost"):
                found.problems.append(f"{fault.kind}: {count} {outcome}, not {right}")
    for category, count in outcomes.failed.items():
        found.survived += min(count, explained[category])
        found.needs(
            count <= explained[category],
            f"{count} failed, category {category}; {explained[category]} of them had a reason",
        )
    for kind, count in outcomes.refused.items():
        found.problems.append(f"{count} refused: {kind}")
    for kind, count in outcomes.wrong.items():
        found.problems.append(f"{count} wrong: {kind}")
    found.needs(
        outcomes.total == result.plan.samples,
        f"the ledger does not add up: {outcomes.total} of {result.plan.samples}",
    )
    e2e = result.stages.get("e2e")
    if e2e is not None:
        found.recovery_s = round((e2e.corrected or e2e.uncorrected).max_ms / 1000, 3)
    if not found.all_problems():
        return found
    told = [note for note in result.notes if note.startswith("sample in row")]
    found.problems += [f"note: {note[:300]}" for note in told[:3]]
    return found


def kinds(record: Record) -> dict[str, int]:
    """How often each kind of fault was given, named as in scripts."""
    total = Counter(kind for given in record.faulted.values() for kind in given)
    return {name_of(Fault[kind]): count for kind, count in total.items()}
