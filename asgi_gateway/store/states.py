"""The life of a sample as a table: states, events, and what each pair means. Pure.

| state                        | start   | retry  | succeed   | fail   | cancel    | evict |
|------------------------------|---------|--------|-----------|--------|-----------|-------|
| QUEUED                       | RUNNING | bug    | bug       | FAILED | CANCELLED | GONE  |
| RUNNING                      | bug     | QUEUED | SUCCEEDED | FAILED | CANCELLED | GONE  |
| SUCCEEDED, FAILED, CANCELLED | late    | late   | late      | late   | late      | GONE  |
| GONE                         | late    | late   | late      | late   | late      | late  |

*bug* raises and changes nothing. *late* is a lost race, a result after a cancel for example: no
change, one counter. Evicting unfinished work is how an interrupted sample is settled: its id then
answers 410 and the SDK submits it again.
"""

import enum
from typing import Final

from asgi_gateway.errors import IllegalTransition


class State(enum.IntEnum):
    QUEUED = 0
    RUNNING = 1
    SUCCEEDED = 2
    FAILED = 3
    CANCELLED = 4
    GONE = 5


class Event(enum.IntEnum):
    START = 0
    RETRY = 1
    SUCCEED = 2
    FAIL = 3
    CANCEL = 4
    EVICT = 5


# For the hot path: a member read from its class costs 960 instructions in CPython 3.11, whose enum
# classes have a `__getattr__`, and one read from a module fewer than 100.
QUEUED: Final = State.QUEUED
RUNNING: Final = State.RUNNING
SUCCEEDED: Final = State.SUCCEEDED
FAILED: Final = State.FAILED
CANCELLED: Final = State.CANCELLED
GONE: Final = State.GONE

START: Final = Event.START
RETRY: Final = Event.RETRY
SUCCEED: Final = Event.SUCCEED
FAIL: Final = Event.FAIL
CANCEL: Final = Event.CANCEL
EVICT: Final = Event.EVICT


class _Bug(enum.Enum):
    BUG = "bug"


class _Late(enum.Enum):
    LATE = "late"


BUG: Final = _Bug.BUG
LATE: Final = _Late.LATE

_FINAL = (LATE, LATE, LATE, LATE, LATE, GONE)

# Rows by State, columns by Event, both in the order of their numbers.
TABLE: Final[tuple[tuple[State | _Bug | _Late, ...], ...]] = (
    (RUNNING, BUG, BUG, FAILED, CANCELLED, GONE),
    (BUG, QUEUED, SUCCEEDED, FAILED, CANCELLED, GONE),
    _FINAL,
    _FINAL,
    _FINAL,
    (LATE, LATE, LATE, LATE, LATE, LATE),
)

SETTLED: Final = frozenset({SUCCEEDED, FAILED, CANCELLED})


def after(state: State, event: Event) -> State | None:
    """The state that `event` leads to, or None where the event came too late.

    Raises:
        IllegalTransition: the pair cannot happen in a correct gateway.
    """
    outcome = TABLE[state][event]
    if isinstance(outcome, State):
        return outcome
    if outcome is LATE:
        return None
    raise IllegalTransition(f"{event.name.lower()} in state {state.name}")
