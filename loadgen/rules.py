"""What the SDK does about each status, read off SDK 0.38 driven against a scripted server.

A table for each of the three calls: submit (asample), fetch (retrieve_future), poll
(retrieve_futures). Pauses are seconds. One client of this harness is one process of trainers; the
SDK's rules hold within each.
"""

from __future__ import annotations

import random
from enum import Enum, auto
from typing import Final

from loadgen.wire import ABANDONED, DROPPED, OVERDUE

PAUSE_S: Final = 1.0
LONG_PAUSE_S: Final = 5.0
BACKOFF_CAP_S: Final = 30.0
RESUBMIT_CAP_S: Final = 10.0
RETRY_WITHIN_S: Final = 300.0
"""A submit is repeated under its seq_id for so long; then it gets a new one."""

SUBMITS_AT_ONCE: Final = 400
SUBMITS_IN_BACKOFF: Final = 10
BACKOFF_LASTS_S: Final = 10.0
BACKOFF_BYTES_FACTOR: Final = 20
BIG_PROMPT: Final = 128 * 1024
BYTES_PER_TOKEN: Final = 10
"""The SDK's estimate of a prompt's size, whatever its text."""

BAD_REQUESTS: Final = 3
"""So many 400 to a fetch are repeated at once, the next one is fatal."""


class Step(Enum):
    """What to do after an answer."""

    TAKE = auto()
    AT_ONCE = auto()
    BACK_OFF = auto()
    PAUSE = auto()
    PAUSE_ALL = auto()
    COUNT = auto()
    RESUBMIT = auto()
    FATAL = auto()


_LOST: Final = (DROPPED, OVERDUE, ABANDONED)


def submit(status: int, size: int) -> Step:
    """size: bytes of the answer's body; an empty 400 is taken as a proxy's noise."""
    if status == 200:
        return Step.TAKE
    if status in (402, 429):
        return Step.PAUSE_ALL
    if status in (408, 409) or status >= 500 or status in _LOST or (status == 400 and not size):
        return Step.BACK_OFF
    return Step.FATAL


def fetch(status: int) -> Step:
    """BACK_OFF doubles from 1 s, PAUSE is `LONG_PAUSE_S`."""
    if status == 200:
        return Step.TAKE
    if status == 408 or status >= 500:
        return Step.AT_ONCE
    if status == 429 or status in _LOST:
        return Step.BACK_OFF
    return _FETCH.get(status, Step.FATAL)


_FETCH: Final = {400: Step.COUNT, 402: Step.PAUSE, 410: Step.RESUBMIT}


def poll(status: int) -> Step:
    """FATAL gives the whole sampling session up, as the SDK does."""
    if status == 200:
        return Step.TAKE
    if status in (408, 409, 429) or status >= 500 or status in _LOST:
        return Step.BACK_OFF
    return _POLL.get(status, Step.FATAL)


_POLL: Final = {400: Step.COUNT, 402: Step.PAUSE}


def retry_class(status: int) -> str:
    """As in outcomes.RETRIES."""
    if status >= 500:
        return "5xx"
    return {DROPPED: "drop", OVERDUE: "timeout", ABANDONED: "abandoned"}.get(status, str(status))


def backoff_s(attempt: int) -> float:
    """1, 2, 4 ... 30 s; attempt counts from 0."""
    return min(PAUSE_S * (1 << min(attempt, 10)), BACKOFF_CAP_S)


def resubmit_s(attempt: int) -> float:
    """0.5, 1, 2 ... 10 s, each a quarter more or less."""
    return min(0.5 * (1 << min(attempt, 10)), RESUBMIT_CAP_S) * random.uniform(0.75, 1.25)


def pause_s(estimate: int) -> float:
    """After 429 to a submit, by the estimate of its prompt's bytes."""
    return PAUSE_S if estimate <= BIG_PROMPT else LONG_PAUSE_S
