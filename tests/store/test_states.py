"""Every cell of the transition table; the table that people read is the one that runs."""

import re

import pytest

from asgi_gateway.errors import IllegalTransition
from asgi_gateway.store import states
from asgi_gateway.store.states import BUG, LATE, SETTLED, TABLE, Event, State, after


def documented() -> dict[tuple[str, str], str]:
    """The docstring's table: (state, event) -> what the cell says, all in its own words."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in (states.__doc__ or "").splitlines()
        if line.startswith("|") and not re.fullmatch(r"[|\s-]+", line)
    ]
    (corner, *events), *body = rows
    assert corner == "state"
    return {
        (state.strip(), event): cell
        for names, *cells in body
        for state in names.split(",")
        for event, cell in zip(events, cells, strict=True)
    }


DOCUMENTED = documented()
CELLS = [(state, event) for state in State for event in Event]


def cell_id(value: State | Event) -> str:
    return value.name.lower()


def said(state: State, event: Event) -> str:
    return DOCUMENTED[state.name, event.name.lower()]


def test_the_documented_table_names_every_cell_once() -> None:
    assert set(DOCUMENTED) == {(state.name, event.name.lower()) for state, event in CELLS}


@pytest.mark.parametrize(("state", "event"), CELLS, ids=cell_id)
def test_the_table_is_the_documented_one(state: State, event: Event) -> None:
    expected = {"bug": BUG, "late": LATE, **{other.name: other for other in State}}
    assert TABLE[state][event] is expected[said(state, event)]


@pytest.mark.parametrize(("state", "event"), CELLS, ids=cell_id)
def test_what_an_event_does(state: State, event: Event) -> None:
    if said(state, event) == "bug":
        with pytest.raises(IllegalTransition, match=f"{event.name.lower()} in state {state.name}"):
            after(state, event)
    elif said(state, event) == "late":
        assert after(state, event) is None
    else:
        assert after(state, event) is State[said(state, event)]


def test_the_table_has_no_row_or_column_too_many() -> None:
    assert len(TABLE) == len(State)
    assert {len(row) for row in TABLE} == {len(Event)}


def test_numbers_are_positions() -> None:
    """TABLE and the store's counts are indexed by them."""
    assert [state.value for state in State] == list(range(len(State)))
    assert [event.value for event in Event] == list(range(len(Event)))


def test_settled_states_lead_only_to_gone() -> None:
    reachable = {
        state: {cell for cell in TABLE[state] if isinstance(cell, State)} for state in State
    }
    assert {state for state, to in reachable.items() if to == {State.GONE}} == SETTLED
    assert reachable[State.GONE] == set()


def test_every_state_can_be_reached_from_accept() -> None:
    seen, frontier = set(), {State.QUEUED}
    while frontier:
        seen |= frontier
        cells = {cell for state in frontier for cell in TABLE[state] if isinstance(cell, State)}
        frontier = cells - seen
    assert seen == set(State)
