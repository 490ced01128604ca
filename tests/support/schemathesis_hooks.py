"""Hooks that the schemathesis command loads: valid ids are fed in, every answer is counted.

Runs in the command's own process. What it feeds comes in by SCHEMATHESIS_FED, a JSON object with
`fields`, field of a body -> value, and `ids`, operation -> id in its path; what was answered goes
out as one JSON line per call to SCHEMATHESIS_SEEN.
"""

import importlib
import itertools
import json
import os
from collections import deque
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

FED: dict[str, dict[str, str]] = json.loads(os.environ["SCHEMATHESIS_FED"])
SEEN = Path(os.environ["SCHEMATHESIS_SEEN"])
ASAMPLE = "POST /api/v1/asample"
FINISH = "POST /api/v1/sessions/{id}/finish"
POLL = "POST /api/v1/retrieve_future"
POLL_MANY = "POST /api/v1/retrieve_futures"
# Every so manyth id is left as it was generated, so that unknown ones are asked for too.
LEFT_EVERY = 8
# The document cannot say what a model's context holds and how many alternatives its server gives,
# and large answers would only cost time.
MOST_TOKENS = 256
MOST_SEQUENCES = 4
MOST_TOPK = 20

_calls = itertools.count(1)
_seq_ids = itertools.count(1)
_promised: deque[str] = deque(maxlen=64)


def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Put known ids where well-typed ones are; a value that breaks the schema stays as it is."""
    label, body, number = case.operation.label, case.body, next(_calls)
    if label == ASAMPLE and isinstance(body, dict):
        _bound(body)
    if label == POLL and number % 2 and isinstance(case.headers, MutableMapping):
        case.headers["Accept"] = "application/x-protobuf"
    if label == FINISH and case.path_parameters.get("id") == FED["fields"]["session_id"]:
        case.path_parameters["id"] = "another"  # the stateful phase learns ids from answers
    if number % LEFT_EVERY == 0:
        return
    if isinstance(body, dict):
        _feed(body, number)
        if label == POLL_MANY and isinstance(body.get("target"), dict):
            _feed(body["target"], number)
            if isinstance(body.get("timeout"), float | None):
                body["timeout"] = 0.0  # most polls shall not be held
    if label in FED["ids"] and "id" in case.path_parameters:
        case.path_parameters["id"] = FED["ids"][label]


def after_call(context: Any, case: Any, response: Any) -> None:
    label = case.operation.label
    if label == ASAMPLE and response.status_code == 200:
        _promised.append(response.json()["request_id"])
    mode = case.meta.generation.mode.value if case.meta else "unknown"
    phase = case.meta.phase.name.value if case.meta else "unknown"
    line = {"operation": label, "method": case.method, "mode": mode, "phase": phase}
    with SEEN.open("a") as file:
        file.write(json.dumps(line | {"status": response.status_code}) + "\n")


def _feed(body: dict[str, Any], number: int) -> None:
    for field, value in FED["fields"].items():
        if isinstance(body.get(field), str):
            body[field] = value
    if _promised and isinstance(body.get("request_id"), str):
        body["request_id"] = _promised[number % len(_promised)]


def _bound(body: dict[str, Any]) -> None:
    """A seq_id of its own, and little work; valid stays valid, invalid stays invalid."""
    _spell(body)
    if _between(body.get("seq_id"), 0, 2**63 - 1):
        body["seq_id"] = next(_seq_ids)
    if _between(body.get("num_samples"), 1, 16_384):
        body["num_samples"] = min(body["num_samples"], MOST_SEQUENCES)
    for field in ("topk_prompt_logprobs", "topk_sample_logprobs"):
        if _between(body.get(field), 0, 1 << 20):
            body[field] = min(body[field], MOST_TOPK)
    params = body.get("sampling_params")
    if isinstance(params, dict) and _between(params.get("max_tokens"), 1, float("inf")):
        params["max_tokens"] = min(params["max_tokens"], MOST_TOKENS)


def _between(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _spell(value: Any) -> Any:
    """Whole floats as integers, in place: to JSON Schema 1.0 is an integer, to us it is none."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        for key in value:
            value[key] = _spell(value[key])
    elif isinstance(value, list):
        value[:] = map(_spell, value)
    return value


hook: Any = importlib.import_module("schemathesis").hook
hook(before_call)
hook(after_call)
