"""Faults that a prompt asks for by its first id, when the server runs with --faults.

The clients under test cannot send the stand-in a header or a field of its own, but they choose
the prompt. Fault `k` belongs to prompts whose first id is `vocab - 1000 + k` (150936 + k with the
default vocabulary):

| k | name | what happens |
|---|---|---|
| 0 | SERVER_ERROR | 500, JSON, InternalServerError |
| 1 | BAD_REQUEST | 400, JSON, BadRequestError |
| 2 | CLOSE_BEFORE | connection closed before a byte of the answer |
| 3 | CLOSE_MIDWAY | connection closed after half the body |
| 4 | UNAVAILABLE | 503, JSON, as an overloaded vLLM |
| 5 | HTML | 200, an HTML page |
| 6 | NULL_LOGPROB | 200, `null` for the middle logprob, in both arrays, as a NaN in a stream |
| 7 | NO_LOGPROBS | 200, `logprobs` is null |
| 8 | CHOICE_MISSING | 200, the last choice is left out |
| 9 | ABORTED | 200, finish_reason "abort" with the first half of the tokens |
| 10 | SILENT | no answer at all, connection kept open |
| 11 | LOGPROB_MISSING | 200, `token_logprobs` one shorter than the tokens |
| 12 | PLAIN_ERROR | 500, plain text |
| 13 | RATE_LIMITED | 429, JSON, Retry-After: 1 |
| 14 | NAN_LOGPROBS | 400, JSON: vLLM's answer when a logprob is NaN, no fault of the request |

6, 7 and 11 leave a body without logprobs as it is. A fault happens after the delay, where the
right answer would have been given; requests that are refused at the door keep their refusal.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec

from loadgen.body import Answer, answer
from loadgen.errors import error_json
from loadgen.request import Job
from loadgen.tape import FAULT_RANGE, Tape


class Fault(IntEnum):
    """Offset of the prompt's first id from `fault_base`."""

    SERVER_ERROR = 0
    BAD_REQUEST = 1
    CLOSE_BEFORE = 2
    CLOSE_MIDWAY = 3
    UNAVAILABLE = 4
    HTML = 5
    NULL_LOGPROB = 6
    NO_LOGPROBS = 7
    CHOICE_MISSING = 8
    ABORTED = 9
    SILENT = 10
    LOGPROB_MISSING = 11
    PLAIN_ERROR = 12
    RATE_LIMITED = 13
    NAN_LOGPROBS = 14


class Canned(NamedTuple):
    """An answer that does not depend on the request."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


CANNED: Final = {
    Fault.SERVER_ERROR: Canned(
        500,
        error_json(
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            status=500,
            kind="InternalServerError",
        ),
    ),
    Fault.BAD_REQUEST: Canned(
        400,
        error_json("The stand-in refuses this prompt.", status=400, kind="BadRequestError"),
    ),
    Fault.NAN_LOGPROBS: Canned(
        400,
        error_json(
            "Out of range float values are not JSON compliant",
            status=400,
            kind="BadRequestError",
        ),
    ),
    Fault.UNAVAILABLE: Canned(
        503,
        error_json(
            "The engine is currently busy and cannot accept new requests. Please try again later "
            "or on a different instance.",
            status=503,
            kind="Service Unavailable",
        ),
    ),
    Fault.HTML: Canned(
        200, b"<!doctype html><title>Sign in</title><p>Sign in to go on.</p>\n", "text/html"
    ),
    Fault.PLAIN_ERROR: Canned(500, b"Internal Server Error", "text/plain; charset=utf-8"),
    Fault.RATE_LIMITED: Canned(
        429,
        error_json("Too many requests", status=429, kind="RateLimitError"),
        headers=(("retry-after", "1"),),
    ),
}

DAMAGES: Final = frozenset(
    (
        Fault.NULL_LOGPROB,
        Fault.NO_LOGPROBS,
        Fault.CHOICE_MISSING,
        Fault.ABORTED,
        Fault.LOGPROB_MISSING,
    )
)
"""Faults that are the right answer with a part changed."""


def fault_base(vocab: int) -> int:
    """The first id that asks for a fault."""
    return vocab - FAULT_RANGE


def fault_prompt_id(fault: Fault, vocab: int) -> int:
    """The first id of a prompt that asks for `fault`."""
    return fault_base(vocab) + fault


def fault_of(first_id: int, vocab: int) -> Fault | None:
    """The fault that a prompt with this first id asks for."""
    offset = first_id - fault_base(vocab)
    return Fault(offset) if 0 <= offset < len(Fault) else None


def damaged(job: Job, tape: Tape, fault: Fault, *, request_id: str, created: int) -> Answer:
    """The right answer with this fault in it. Speed is no aim: it is written, read and rewritten.

    An aborted answer has the first half of the tokens, rounded up.
    """
    if fault is Fault.ABORTED:
        job = job._replace(max_tokens=[(limit + 1) // 2 for limit in job.max_tokens])
    right = answer(job, tape, request_id=request_id, created=created)
    body: dict[str, Any] = msgspec.json.decode(right.body)
    if fault is Fault.CHOICE_MISSING:
        body["choices"].pop()
    for choice in body["choices"]:
        _damage_choice(choice, fault)
    return right._replace(body=msgspec.json.encode(body))


def _damage_choice(choice: dict[str, Any], fault: Fault) -> None:
    logprobs = choice["logprobs"]
    if fault is Fault.NO_LOGPROBS:
        choice["logprobs"] = None
    elif fault is Fault.ABORTED:
        choice["finish_reason"] = "abort"
        choice["stop_reason"] = None
    elif logprobs is not None and fault is Fault.NULL_LOGPROB:
        middle = len(logprobs["token_logprobs"]) // 2
        logprobs["token_logprobs"][middle] = None
        chosen = next(iter(logprobs["top_logprobs"][middle]))
        logprobs["top_logprobs"][middle][chosen] = None
    elif logprobs is not None and fault is Fault.LOGPROB_MISSING:
        logprobs["token_logprobs"].pop()
