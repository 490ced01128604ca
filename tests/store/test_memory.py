"""What is the memory store's alone: runs and their clock, room for answers, and who is parked. The
rest is in `test_store`."""

import pytest

from asgi_gateway.errors import Overloaded, TooLarge
from asgi_gateway.peer import Waker
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import Event, State
from tests.store.records import (
    RESERVED_BYTES,
    RESULT,
    START_AT,
    VERBS,
    WORK_S,
    accepted,
    brought_to,
    new_store,
    picture,
)


def test_attempts_count_starts() -> None:
    store = new_store()
    record = accepted(store)
    for attempt in (1, 2, 3):
        assert store.start(record, START_AT + attempt)
        assert (record.attempts, record.started_at) == (attempt, START_AT + attempt)
        assert store.retry(record, START_AT + attempt + 0.5)
        assert (record.upstream_s, record.started_at) == (0.5 * attempt, 0.0)


# --- the work clock (policies 1) ----------------------------------------------------------------


def test_the_work_clock_runs_from_dispatch() -> None:
    store = new_store()
    record = accepted(store)
    store.start(record, START_AT)
    assert store.sweep(START_AT + WORK_S - 0.5, 1000).overdue == []
    assert store.sweep(START_AT + WORK_S, 1000).overdue == [record]
    assert record.state is State.RUNNING, "failing it is the caller's part"


def test_the_work_clock_starts_again_at_a_retry() -> None:
    store = new_store()
    record = accepted(store)
    store.start(record, START_AT)
    store.retry(record, START_AT + 1)
    assert store.sweep(START_AT + WORK_S, 1000).overdue == [], "no clock while it waits"
    store.start(record, START_AT + 2000)
    assert store.sweep(START_AT + 2000 + WORK_S - 0.5, 1000).overdue == []
    assert store.sweep(START_AT + 2000 + WORK_S, 1000).overdue == [record]


@pytest.mark.parametrize("settle", [Event.SUCCEED, Event.FAIL, Event.CANCEL])
def test_a_settled_sample_is_not_overdue(settle: Event) -> None:
    store = new_store()
    record = brought_to(store, State.RUNNING)
    VERBS[settle](store, record, START_AT + WORK_S - 1)
    assert store.sweep(START_AT + WORK_S, 1000).overdue == []


def test_a_sweep_has_a_budget_and_resumes() -> None:
    store = new_store()
    for seq_id in range(5):
        brought_to(store, State.SUCCEEDED, seq_id)
    running = [brought_to(store, State.RUNNING, seq_id) for seq_id in range(5, 10)]
    later = START_AT + 1e6
    sweeps = [store.sweep(later, 2) for _ in range(4)]
    assert [swept.evicted for swept in sweeps] == [2, 2, 1, 0]
    assert [len(swept.overdue) for swept in sweeps] == [2, 2, 1, 0]
    assert [record for swept in sweeps for record in swept.overdue] == running


# --- room for answers ---------------------------------------------------------------------------


@pytest.mark.parametrize(("nbytes", "fits"), [(99, True), (100, True), (101, False)])
def test_a_sample_that_can_never_fit_is_413(nbytes: int, fits: bool) -> None:
    """The SDK repeats 429 for ever."""
    store = new_store(max_bytes=100)
    if fits:
        store.admit(nbytes)
    else:
        with pytest.raises(TooLarge, match=f"{nbytes} bytes.* 100") as caught:
            store.admit(nbytes)
        assert caught.value.status == 413


def test_the_prompt_is_dropped_once() -> None:
    store = new_store()
    record = brought_to(store, State.RUNNING)
    for _ in range(2):
        store.drop_prompt(record)
        assert record.body is None
        assert store.charged_bytes == record.charged_bytes == RESERVED_BYTES
    store.succeed(record, RESULT, START_AT)
    assert store.charged_bytes == len(RESULT)


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.CANCELLED, State.GONE])
def test_dropping_the_prompt_of_a_settled_sample_is_nothing(state: State) -> None:
    """The headers of an answer may come after a cancel."""
    store = new_store()
    record = brought_to(store, state)
    before = picture(store, record)
    store.drop_prompt(record)
    assert picture(store, record) == before


@pytest.mark.parametrize(("reserve", "room"), [(59, True), (60, True), (61, False)])
def test_room_for_an_answer(reserve: int, room: bool) -> None:
    store = new_store(max_bytes=240)
    brought_to(store, State.RUNNING)
    queued = accepted(store, 1, reserve=reserve)
    assert store.charged_bytes == 180
    assert store.has_room(queued) is room


def test_a_sample_larger_than_the_whole_budget_runs_alone() -> None:
    store = new_store(max_bytes=200)
    small, huge = brought_to(store, State.RUNNING), accepted(store, 1, reserve=10_000)
    assert not store.has_room(huge)
    store.succeed(small, RESULT, START_AT)
    assert store.has_room(huge)
    assert store.start(huge, START_AT)
    assert store.charged_bytes > 200
    with pytest.raises(Overloaded):
        store.admit(1)
    another = accepted(store, 2, reserve=1)
    assert not store.has_room(another)
    store.succeed(huge, RESULT, START_AT)
    assert store.has_room(another)
    store.admit(1)


def full_of_results() -> tuple[MemoryStore, Record, list[Record]]:
    """One running, three settled of 7 bytes (the last delivered first), and one without room."""
    store = new_store(max_bytes=261)
    settled = [brought_to(store, State.SUCCEEDED, seq_id) for seq_id in range(3)]
    store.delivered(settled[2], START_AT + 1)
    brought_to(store, State.RUNNING, 3)
    queued = accepted(store, 4, body=b"", reserve=100 + 4)
    assert store.charged_bytes == 3 * 7 + 140
    return store, queued, settled


@pytest.mark.parametrize(
    ("more_bytes", "dropped"),
    [(-4, []), (0, [2]), (3, [2]), (4, [2, 0]), (17, [2, 0, 1]), (18, [])],
)
def test_room_is_made_of_the_oldest_delivered_and_then_of_the_oldest(
    more_bytes: int, dropped: list[int]
) -> None:
    store, queued, settled = full_of_results()
    queued.reserve_bytes += more_bytes
    assert store.has_room(queued) is (more_bytes == -4)
    assert store.make_room(queued, 100) == len(dropped)
    gone = [number for number, record in enumerate(settled) if record.state is State.GONE]
    assert gone == sorted(dropped)
    assert store.has_room(queued) is (more_bytes < 18), "and none for nothing"
    # Who has it need not be told; who has not must be.
    lost = {number for number in dropped if store.targets.is_lost(settled[number].request_id)}
    assert lost == set(dropped) - {2}


def test_unfinished_may_be_evicted_while_it_is_walked() -> None:
    store = new_store()
    for seq_id, state in enumerate(State):
        brought_to(store, state, seq_id)
    walked = []
    for record in store.unfinished():
        walked.append(record.state)
        store.evict(record)
    assert walked == [State.QUEUED, State.RUNNING]
    assert store.in_flight == 0


# --- waiters ------------------------------------------------------------------------------------


async def test_waiters_are_those_parked_for_the_record() -> None:
    store = new_store()
    record, other = accepted(store, 0), accepted(store, 1)
    first, second, third = Waker(), Waker(), Waker()
    store.waiting.park(record, first)
    store.waiting.park(record, second)
    store.waiting.park(other, third)
    assert store.waiting.of(record) == [first, second]
    assert store.parked == 3
    store.waiting.unpark(record, first)
    store.waiting.unpark(record, first)  # once more is nothing
    assert store.waiting.of(record) == [second]
    store.waiting.unpark(record, third)  # parked elsewhere
    assert store.waiting.of(other) == [third]
    store.waiting.unpark(record, second)
    store.waiting.unpark(other, third)
    assert store.parked == 0
    assert store.waiting._parked == {}


async def test_waiters_outlive_their_record_until_they_unpark() -> None:
    store = new_store()
    record, waker = accepted(store), Waker()
    store.waiting.park(record, waker)
    store.evict(record)
    assert store.waiting.of(record) == [waker]
    store.waiting.unpark(record, waker)
    assert store.parked == 0


def test_repr_says_how_many_of_each() -> None:
    store = new_store()
    brought_to(store, State.RUNNING)
    accepted(store, 1)
    assert "1 queued, 1 running" in repr(store)
    assert "180 bytes" in repr(store)
