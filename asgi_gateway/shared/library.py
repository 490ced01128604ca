"""The function library that runs inside the server, as text.

Each function is one atomic step over one group's keys. The table of states is written into the
library from `states.TABLE`, so that no pair of state and event has a second meaning there.
"""

import enum
from importlib.resources import files
from typing import Any, Final

from asgi_gateway.store.states import SETTLED, TABLE, Event, State

# To be raised with every change of what a function takes, does or answers: processes of both
# versions then run side by side, each with its own functions.
VERSION: Final = 1
NAME: Final = f"asgi_gateway_{VERSION}"
VERB_PREFIX: Final = f"agw{VERSION}_"
# Joined in this order, for each uses what is before it.
PIECES: Final = ("samples.lua", "functions.lua", "endings.lua")

# As many as `seq_id // SEQ_IDS_PER_CLONE` takes off.
CLONE_DIGITS: Final = 9
# Clones of one sampling session that poll in batches, as in the memory store.
MAX_CLONES: Final = 4096
# Processes that wait for one sample or one log; few do, and a dead one is never taken off by hand.
MAX_WATCHERS: Final = 64


def text() -> str:
    """The library as it is loaded."""
    pieces = (files("asgi_gateway.shared").joinpath(piece).read_text() for piece in PIECES)
    return "\n".join((_head(), *pieces))


def _head() -> str:
    constants: dict[str, object] = {
        "CLONE_DIGITS": CLONE_DIGITS,
        "MAX_CLONES": MAX_CLONES,
        "MAX_WATCHERS": MAX_WATCHERS,
        "VERB_PREFIX": f'"{VERB_PREFIX}"',
        **{state.name: state.value for state in State},
        **{event.name: event.value for event in Event},
        "AFTER": _array(_array(_cell(cell) for cell in row) for row in TABLE),
        "SETTLED": f"{{ {', '.join(f'[{state.value}] = true' for state in sorted(SETTLED))} }}",
    }
    lines = (f"local {name} = {value}" for name, value in constants.items())
    return "\n".join((f"#!lua name={NAME}", *lines))


def _cell(cell: enum.Enum) -> str:
    return str(cell.value) if isinstance(cell, State) else f'"{cell.value}"'


def _array(values: Any) -> str:
    """Lua's, from 0 on."""
    return f"{{ {', '.join(f'[{index}] = {value}' for index, value in enumerate(values))} }}"
