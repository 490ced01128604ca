"""What can go wrong on purpose. A script asks for it (see `script`), or a prompt by its first id.

The clients under test cannot send the stand-in a header or a field of its own, but they choose
the prompt. With --faults prompt, fault `k` belongs to prompts whose first id is `vocab - 1000 + k`
(150936 + k with the default vocabulary):

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
| 15 | RESET_BEFORE | connection reset (RST) before a byte of the answer |
| 16 | RESET_BODY | connection reset (RST) after half the body |
| 17 | BAD_GATEWAY | 502, plain text, as a proxy without a worker |
| 18 | TRUNCATED | 200, half of the JSON under a content-length that agrees with it |
| 19 | DRIP | 200, the body in small pieces over 10 s |
| 20 | NAN_VALUE | 200, a bare `NaN` for the middle logprob, in both arrays |
| 21 | REFUSE | connection closed, and new ones refused for 1 s |

6, 7, 11 and 20 leave a body without logprobs as it is. A fault happens after the delay, where the
right answer would have been given; requests that are refused at the door keep their refusal.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from loadgen.errors import error_json
from loadgen.tape import FAULT_RANGE

DRIP_S: Final = 10.0
REFUSE_S: Final = 1.0


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
    RESET_BEFORE = 15
    RESET_BODY = 16
    BAD_GATEWAY = 17
    TRUNCATED = 18
    DRIP = 19
    NAN_VALUE = 20
    REFUSE = 21


class Canned(NamedTuple):
    """An answer that does not depend on the request."""

    status: int
    body: bytes
    content_type: str = "application/json"


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
    Fault.BAD_GATEWAY: Canned(502, b"Bad Gateway", "text/plain; charset=utf-8"),
    Fault.RATE_LIMITED: Canned(
        429,
        error_json("Too many requests", status=429, kind="RateLimitError"),
    ),
}


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
