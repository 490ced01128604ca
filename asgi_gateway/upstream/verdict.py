"""What an HTTP answer of vLLM or vllm-router means. Pure; one table for every transport.

| answer                                   | meaning                                           |
|------------------------------------------|---------------------------------------------------|
| 2xx                                      | a completion, if it decodes                       |
| 408, 429, 503                            | Unavailable: not run, wait (Retry-After respected)|
| JSON 500                                 | EngineFault: one more try                         |
| plain-text 500 (the router's), other 5xx | Interrupted: may be running, not run again        |
| 401, 403, 405, 415, 3xx                  | Rejected, category server: the operator's to fix  |
| 400 "Out of range float values"          | Rejected, category server: vLLM met NaN           |
| other 4xx                                | Rejected, category user, with the upstream's text |
"""

import math
import re
from typing import Final

import msgspec

from asgi_gateway.errors import (
    Aborted,
    EngineFault,
    Interrupted,
    Rejected,
    Unavailable,
    UpstreamError,
)

MAX_TEXT_CHARACTERS: Final = 1000
_UNAVAILABLE: Final = frozenset({408, 429, 503})
_OPERATORS: Final = frozenset({401, 403, 405, 415})
_NAN_MARK: Final = "Out of range float values"
# Controls, line separators, and the marks that turn the direction of text around in a log.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]+"
)


def judge(status: int, body: bytes, retry_after: str | None = None) -> UpstreamError | None:
    """The error that an answer stands for, or None where it is a completion to decode."""
    if 200 <= status < 300:
        return None
    text = error_text(body)
    shown = f"the upstream answered {status}: {text}" if text else f"the upstream answered {status}"
    if status in _UNAVAILABLE:
        return Unavailable(shown, _seconds(retry_after))
    if status == 500 and _is_json_object(body):
        return EngineFault(shown)
    if status >= 500:
        return Interrupted(shown)
    if status in _OPERATORS or status < 400 or (status == 400 and _NAN_MARK in text):
        return Rejected(shown, "server")
    return Rejected(shown, "user")


def error_text(body: bytes) -> str:
    """The message of an error body, OpenAI's, FastAPI's or plain, on one line and bounded."""
    text: object = None
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        error = parsed.get("error", parsed.get("detail"))
        text = error.get("message") if isinstance(error, dict) else error
    if not isinstance(text, str):
        text = body[: 4 * MAX_TEXT_CHARACTERS].decode("utf-8", "replace")
    return printable(text)


def printable(text: str) -> str:
    """`text` without control characters, cut to MAX_TEXT_CHARACTERS."""
    cut = text[: 4 * MAX_TEXT_CHARACTERS]  # a long text is not searched to its end
    return _UNPRINTABLE.sub(" ", cut).strip()[:MAX_TEXT_CHARACTERS]


def _is_json_object(body: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in its seconds form; the date form is not used by any upstream seen."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def speaks_against(error: UpstreamError) -> bool:
    """Whether an error speaks against the upstream. A 4xx proves that it lives; an abort is the
    engine's answer to one sample."""
    if isinstance(error, Aborted):
        return False
    return isinstance(error, (Unavailable, EngineFault, Interrupted))
