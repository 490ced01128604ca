"""Every cell of the table of states, and every pair of events, in a real server."""

import itertools
from typing import Any

import pytest

from asgi_gateway.errors import IllegalTransition
from asgi_gateway.shared import library
from asgi_gateway.shared.commands import Command
from asgi_gateway.shared.outcomes import Moved
from asgi_gateway.shared.verbs import Verbs
from asgi_gateway.store.records import Failure
from asgi_gateway.store.states import LATE, TABLE, Event, State, after
from tests.shared.server import LIFETIMES, Blocking, run
from tests.store.ids import EPOCH, made_id

pytestmark = pytest.mark.system

TO_STATE: dict[State, tuple[Event, ...]] = {
    State.QUEUED: (),
    State.RUNNING: (Event.START,),
    State.SUCCEEDED: (Event.START, Event.SUCCEED),
    State.FAILED: (Event.FAIL,),
    State.CANCELLED: (Event.CANCEL,),
    State.GONE: (Event.EVICT,),
}


def verb(verbs: Verbs, request_id: str, event: Event) -> Command[Moved]:
    match event:
        case Event.START:
            return verbs.start(request_id, 2000, 100)
        case Event.RETRY:
            return verbs.retry(request_id, 2000)
        case Event.SUCCEED:
            return verbs.succeed(request_id, 2000, b"result")
        case Event.FAIL:
            return verbs.fail(request_id, 2000, Failure("no", "user"))
        case Event.CANCEL:
            return verbs.cancel(request_id, 2000)
        case Event.EVICT:
            return verbs.evict(request_id, 2000, told=False)


def brought_to(verbs: Verbs, state: State) -> str:
    request_id = made_id("sampler-1")
    command = verbs.accept(
        request_id,
        1000,
        sampling_session_id="sampler-1",
        seq_id=7,
        digest=b"d" * 16,
        caller="caller",
        nbytes=40,
    )
    assert run(verbs, command).fresh
    for event in TO_STATE[state]:
        assert run(verbs, verb(verbs, request_id, event)).outcome == "ok"
    assert state_of(verbs, request_id) is state
    return request_id


def state_of(verbs: Verbs, request_id: str) -> State:
    found = run(verbs, verbs.look(request_id, "caller", watch=False))
    assert found is not None
    return found.state


def everything(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("*")}


@pytest.fixture
def verbs(client: Any) -> Verbs:
    return Verbs(Blocking(client), LIFETIMES, epoch=EPOCH)


@pytest.mark.parametrize("event", list(Event), ids=lambda event: event.name.lower())
@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name.lower())
def test_a_cell(verbs: Verbs, client: Any, state: State, event: Event) -> None:
    request_id = brought_to(verbs, state)
    before = everything(client)
    command = verb(verbs, request_id, event)
    try:
        expected = after(state, event)
    except IllegalTransition:
        with pytest.raises(IllegalTransition, match=state.name):
            run(verbs, command)
        assert everything(client) == before
        return
    moved = run(verbs, command)
    if expected is None:
        assert (moved.outcome, moved.state) == ("late", state)
        assert everything(client) == before
    else:
        assert (moved.outcome, moved.state) == ("ok", expected)
        assert state_of(verbs, request_id) is expected


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name.lower())
def test_two_events_are_taken_together_or_not_at_all(
    verbs: Verbs, client: Any, state: State
) -> None:
    for first, second in itertools.product(Event, Event):
        client.flushall()
        request_id = brought_to(verbs, state)
        before = everything(client)
        try:
            between = after(state, first)
            expected = None if between is None else after(between, second)
            bug = False
        except IllegalTransition:
            expected, bug = None, True
        value = 100 if second is Event.START else b"result"
        command = verbs._move(
            b"agw1_move", request_id, (first, second), 2000, 1000, value=value, category="user"
        )
        if bug:
            with pytest.raises(IllegalTransition):
                run(verbs, command)
        else:
            assert run(verbs, command).outcome == ("late" if expected is None else "ok")
        if expected is None:
            assert everything(client) == before
        else:
            assert state_of(verbs, request_id) is expected


def test_the_table_alone_decides(
    verbs: Verbs, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another table in the library, and the functions do as it says."""
    rows = [list(row) for row in TABLE]
    rows[State.RUNNING][Event.CANCEL] = LATE
    rows[State.QUEUED][Event.RETRY] = State.FAILED
    rows[State.SUCCEEDED][Event.EVICT] = LATE
    succeeded, running = brought_to(verbs, State.SUCCEEDED), made_id("sampler-2")
    with monkeypatch.context() as patch:
        patch.setattr(library, "TABLE", rows)
        client.function_load(library.text(), replace=True)
    try:
        command = verbs.accept(
            running,
            1000,
            sampling_session_id="sampler-2",
            seq_id=7,
            digest=b"d" * 16,
            caller="caller",
            nbytes=40,
        )
        run(verbs, command)
        run(verbs, verbs.start(running, 2000))
        assert run(verbs, verbs.cancel(running, 2000)).outcome == "late"
        assert run(verbs, verbs.evict(succeeded, 2000, told=True)).outcome == "late"
        for acknowledge in verbs.acknowledge([succeeded], "caller"):
            run(verbs, acknowledge)
        assert state_of(verbs, succeeded) is State.SUCCEEDED
    finally:
        client.function_load(library.text(), replace=True)
    assert run(verbs, verbs.cancel(running, 2000)).outcome == "ok"
