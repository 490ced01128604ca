"""Answers that are the right one with a part changed."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from loadgen.body import EXACT, Answer, Style, answer
from loadgen.faults import Fault
from loadgen.request import Job
from loadgen.tape import Tape


def damaged(
    job: Job,
    tape: Tape,
    fault: Fault,
    style: Style = EXACT,
    *,
    request_id: str,
    created: int,
) -> Answer:
    """The right answer with this fault in it. Speed is no aim: it is written, read and rewritten.

    An aborted answer has the first half of the tokens, rounded up.
    """
    if fault is Fault.ABORTED:
        job = job._replace(max_tokens=[(limit + 1) // 2 for limit in job.max_tokens])
    right = answer(job, tape, style, request_id=request_id, created=created)
    if fault is Fault.TRUNCATED:
        return right._replace(body=right.body[: len(right.body) // 2])
    if fault in (Fault.CLOSE_MIDWAY, Fault.RESET_BODY, Fault.DRIP):
        return right  # it is the delivery that fails
    body: dict[str, Any] = msgspec.json.decode(right.body)
    if fault is Fault.CHOICE_MISSING:
        body["choices"].pop()
    for choice in body["choices"]:
        _damage_choice(choice, fault)
    if fault is Fault.NAN_VALUE:
        # The standard library writes NaN bare, as no JSON allows it; msgspec would write null.
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        return right._replace(body=text.encode())
    return right._replace(body=msgspec.json.encode(body))


def _damage_choice(choice: dict[str, Any], fault: Fault) -> None:
    logprobs = choice["logprobs"]
    if fault is Fault.NO_LOGPROBS:
        choice["logprobs"] = None
    elif fault is Fault.ABORTED:
        choice["finish_reason"] = "abort"
        choice["stop_reason"] = None
    elif logprobs is not None and fault in (Fault.NULL_LOGPROB, Fault.NAN_VALUE):
        value = None if fault is Fault.NULL_LOGPROB else math.nan
        middle = len(logprobs["token_logprobs"]) // 2
        logprobs["token_logprobs"][middle] = value
        if logprobs["top_logprobs"]:  # lean bodies have none
            chosen = next(iter(logprobs["top_logprobs"][middle]))
            logprobs["top_logprobs"][middle][chosen] = value
    elif logprobs is not None and fault is Fault.LOGPROB_MISSING:
        logprobs["token_logprobs"].pop()
