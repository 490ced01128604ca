"""MemoryStore through its verbs: every cell of the table, the clocks, the budgets, the index."""

from collections.abc import Callable

import pytest

from asgi_gateway.errors import IllegalTransition, Overloaded, TooLarge, Unsupported
from asgi_gateway.peer import Waker
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Failure, Record
from asgi_gateway.store.states import BUG, LATE, TABLE, Event, State
from tests.store.records import (
    DELIVERED_S,
    UNDELIVERED_S,
    WORK_S,
    accepted,
    clocks,
    new_record,
    new_store,
    picture,
)

START_AT, RESULT = 1000.0, b"r" * 7
FAILURE = Failure("no, not this", "user")
BODY_BYTES, RESERVED_BYTES = 40, 100  # of accepted()

Verb = Callable[[MemoryStore, Record, float], bool]
VERBS: dict[Event, Verb] = {
    Event.START: lambda store, record, now: store.start(record, now),
    Event.RETRY: lambda store, record, now: store.retry(record, now),
    Event.SUCCEED: lambda store, record, now: store.succeed(record, RESULT, now),
    Event.FAIL: lambda store, record, now: store.fail(record, FAILURE, now),
    Event.CANCEL: lambda store, record, now: store.cancel(record, now),
    Event.EVICT: lambda store, record, now: store.evict(record),
}
TO_STATE = {
    State.QUEUED: (),
    State.RUNNING: (Event.START,),
    State.SUCCEEDED: (Event.START, Event.SUCCEED),
    State.FAILED: (Event.START, Event.FAIL),
    State.CANCELLED: (Event.START, Event.CANCEL),
    State.GONE: (Event.START, Event.EVICT),
}
CHARGED = {
    State.QUEUED: BODY_BYTES,
    State.RUNNING: BODY_BYTES + RESERVED_BYTES,
    State.SUCCEEDED: len(RESULT),
    State.FAILED: len(FAILURE.text),
    State.CANCELLED: 0,
    State.GONE: 0,
}
RUNNING_CLOCK = {
    State.RUNNING: ("work", WORK_S),
    State.SUCCEEDED: ("undelivered", UNDELIVERED_S),
    State.FAILED: ("undelivered", UNDELIVERED_S),
    State.CANCELLED: ("undelivered", UNDELIVERED_S),
}
CELLS = [(state, event) for state in State for event in Event]


def brought_to(store: MemoryStore, state: State, seq_id: int = 0) -> Record:
    record = accepted(store, seq_id)
    for event in TO_STATE[state]:
        assert VERBS[event](store, record, START_AT)
    assert record.state is state
    return record


# --- the table, cell by cell --------------------------------------------------------------------


@pytest.mark.parametrize(("state", "event"), CELLS, ids=lambda value: value.name.lower())
def test_a_cell(state: State, event: Event) -> None:
    store = new_store()
    bystander = brought_to(store, State.RUNNING, seq_id=1)
    record = brought_to(store, state)
    before = picture(store, record, bystander)
    cell, now = TABLE[state][event], START_AT + 10

    if cell is BUG:
        with pytest.raises(IllegalTransition):
            VERBS[event](store, record, now)
        assert picture(store, record, bystander) == before
        return
    if cell is LATE:
        assert VERBS[event](store, record, now) is False
        before["late_events"] += 1
        assert picture(store, record, bystander) == before
        return

    assert isinstance(cell, State)
    assert VERBS[event](store, record, now) is True
    assert record.state is cell
    assert record.charged_bytes == CHARGED[cell]
    assert store.charged_bytes == CHARGED[cell] + bystander.charged_bytes
    assert store.results_bytes == (len(RESULT) if cell is State.SUCCEEDED else 0)
    assert sum(store.late_events) == 0

    counts = [0] * len(State)
    counts[State.RUNNING] += 1  # the bystander
    if cell is not State.GONE:
        counts[cell] += 1
    assert store.counts == counts
    assert store.in_flight == 1 + (cell in (State.QUEUED, State.RUNNING))

    expected: dict[str, dict[str, float]] = {
        "work": {bystander.request_id: START_AT + WORK_S},
        "undelivered": {},
        "delivered": {},
    }
    if cell in RUNNING_CLOCK:
        name, lifetime_s = RUNNING_CLOCK[cell]
        expected[name][record.request_id] = now + lifetime_s
    assert clocks(store) == expected

    held = cell is not State.GONE
    assert (store.find(record.request_id) is record) is held
    assert (store.submitted(record.sampling_session_id, 0, record.digest) is record) is held


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name.lower())
def test_prompt_bytes_are_kept_only_while_they_may_be_sent(state: State) -> None:
    store = new_store()
    record = brought_to(store, state)
    assert (record.body is not None) is (state in (State.QUEUED, State.RUNNING))


def test_the_outcome_is_kept_as_it_came() -> None:
    store = new_store()
    succeeded, failed, cancelled = (
        brought_to(store, state, seq_id)
        for seq_id, state in enumerate((State.SUCCEEDED, State.FAILED, State.CANCELLED))
    )
    assert (succeeded.result, succeeded.failure) == (RESULT, None)
    assert (failed.result, failed.failure) == (None, FAILURE)
    assert cancelled.result is None
    assert cancelled.failure is not None
    assert cancelled.failure.category == "user"
    assert [record.settled_at for record in (succeeded, failed, cancelled)] == [START_AT] * 3


def test_a_queued_sample_can_fail_and_be_cancelled() -> None:
    store = new_store()
    failed, cancelled = accepted(store, 0), accepted(store, 1)
    assert store.fail(failed, FAILURE, START_AT)
    assert store.cancel(cancelled, START_AT)
    assert store.charged_bytes == len(FAILURE.text)
    assert clocks(store)["undelivered"].keys() == {failed.request_id, cancelled.request_id}


def test_late_results_are_counted_each() -> None:
    store = new_store()
    record = brought_to(store, State.CANCELLED)
    for _ in range(3):
        assert not store.succeed(record, b"too late", START_AT)
    assert sum(store.late_events) == 3
    assert record.result is None


def test_attempts_count_starts() -> None:
    store = new_store()
    record = accepted(store)
    for attempt in (1, 2, 3):
        assert store.start(record, START_AT + attempt)
        assert (record.attempts, record.started_at) == (attempt, START_AT + attempt)
        assert store.retry(record, START_AT + attempt + 0.5)
        assert (record.upstream_s, record.started_at) == (0.5 * attempt, 0.0)


# --- lifetimes (policies 1) ---------------------------------------------------------------------


def test_waiting_has_no_clock() -> None:
    store = new_store()
    record = accepted(store)
    swept = store.sweep(START_AT + 1e9, 1000)
    assert (swept.overdue, swept.evicted) == ([], 0)
    assert store.find(record.request_id) is record


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


@pytest.mark.parametrize("settle", [Event.SUCCEED, Event.FAIL, Event.CANCEL])
def test_an_undelivered_outcome_is_kept_its_time(settle: Event) -> None:
    store = new_store()
    record = brought_to(store, State.RUNNING)
    VERBS[settle](store, record, START_AT)
    assert store.sweep(START_AT + UNDELIVERED_S - 0.5, 1000).evicted == 0
    assert store.sweep(START_AT + UNDELIVERED_S, 1000).evicted == 1
    assert record.state is State.GONE
    assert store.find(record.request_id) is None


def test_the_delivered_clock_replaces_the_undelivered_one() -> None:
    store = new_store()
    record = brought_to(store, State.SUCCEEDED)
    store.delivered(record, START_AT + 10)
    assert store.sweep(START_AT + 10 + DELIVERED_S - 0.5, 1000).evicted == 0
    assert store.sweep(START_AT + 10 + DELIVERED_S, 1000).evicted == 1


def test_the_delivered_clock_starts_again_at_each_delivery() -> None:
    store = new_store()
    record = brought_to(store, State.SUCCEEDED)
    for delivery in range(20):  # 5,980 s in all, far beyond both lifetimes
        now = START_AT + delivery * 299
        assert store.sweep(now, 1000).evicted == 0
        store.delivered(record, now)
    assert store.sweep(now + DELIVERED_S - 0.5, 1000).evicted == 0
    assert store.sweep(now + DELIVERED_S, 1000).evicted == 1


def test_an_evicted_delivery_leaves_no_clock() -> None:
    store = new_store()
    record = brought_to(store, State.SUCCEEDED)
    store.delivered(record, START_AT)
    assert store.evict(record)
    assert clocks(store) == {"work": {}, "undelivered": {}, "delivered": {}}
    store.delivered(record, START_AT)
    assert clocks(store) == {"work": {}, "undelivered": {}, "delivered": {}}


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.GONE])
def test_what_has_no_outcome_is_not_delivered(state: State) -> None:
    store = new_store()
    record = brought_to(store, state)
    before = picture(store, record)
    store.delivered(record, START_AT)
    assert picture(store, record) == before


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


# --- admission and bytes ------------------------------------------------------------------------


@pytest.mark.parametrize(("held", "admitted"), [(2, True), (3, False), (4, False)])
def test_admission_by_count(held: int, admitted: bool) -> None:
    store = new_store(max_in_flight=3)
    for seq_id in range(held):
        accepted(store, seq_id)
    if admitted:
        store.admit(1)
    else:
        with pytest.raises(Overloaded, match=f"{held} samples in flight"):
            store.admit(1)


def test_only_unsettled_samples_count() -> None:
    store = new_store(max_in_flight=2)
    for seq_id, state in enumerate(State):
        brought_to(store, state, seq_id)
    with pytest.raises(Overloaded):
        store.admit(0)
    store.cancel(store.targets.records("sampler-1")[0], START_AT)
    store.admit(0)


@pytest.mark.parametrize(("nbytes", "admitted"), [(59, True), (60, True), (61, False)])
def test_admission_by_bytes(nbytes: int, admitted: bool) -> None:
    store = new_store(max_bytes=100)
    accepted(store)
    assert store.charged_bytes == 40
    if admitted:
        store.admit(nbytes)
    else:
        with pytest.raises(Overloaded, match="the limit is 100"):
            store.admit(nbytes)


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


def test_a_refusal_is_429_with_retry_after() -> None:
    store = new_store(max_bytes=100)
    accepted(store)
    with pytest.raises(Overloaded) as caught:
        store.admit(100)
    assert caught.value.status == 429
    assert caught.value.retry_after_s


def test_admission_changes_nothing() -> None:
    store = new_store(max_bytes=100)
    accepted(store)
    before = picture(store)
    store.admit(60)
    with pytest.raises(Overloaded):
        store.admit(61)
    assert picture(store) == before


@pytest.mark.parametrize(
    "end",
    [Event.RETRY, Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EVICT],
    ids=lambda event: event.name.lower(),
)
def test_the_reservation_is_given_back(end: Event) -> None:
    store = new_store()
    record = brought_to(store, State.RUNNING)
    assert store.charged_bytes == BODY_BYTES + RESERVED_BYTES
    VERBS[end](store, record, START_AT)
    assert store.charged_bytes == CHARGED[record.state]


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


# --- the same sample again (policies 4) ---------------------------------------------------------


@pytest.mark.parametrize(
    "state", [state for state in State if state is not State.GONE], ids=lambda state: state.name
)
def test_the_same_body_finds_the_same_record_at_any_stage(state: State) -> None:
    store = new_store()
    record = brought_to(store, state)
    assert store.submitted("sampler-1", 0, b"digest") is record


@pytest.mark.parametrize(
    "state", [state for state in State if state is not State.GONE], ids=lambda state: state.name
)
def test_another_body_is_refused_with_422(state: State) -> None:
    """The SDK repeats 409 blindly."""
    store = new_store()
    record = brought_to(store, state)
    before = picture(store, record)
    with pytest.raises(Unsupported, match="seq_id 0") as caught:
        store.submitted("sampler-1", 0, b"another")
    assert caught.value.status == 422
    assert picture(store, record) == before


def test_seq_ids_belong_to_their_sampling_session() -> None:
    store = new_store()
    accepted(store)
    assert store.submitted("sampler-1", 1, b"another") is None
    assert store.submitted("sampler-2", 0, b"another") is None


def test_after_eviction_the_same_seq_id_is_a_new_sample() -> None:
    store = new_store()
    old = brought_to(store, State.GONE)
    assert store.submitted("sampler-1", 0, b"another") is None
    new = accepted(store, 0, digest=b"another")
    assert not store.evict(old), "late"
    assert store.submitted("sampler-1", 0, b"another") is new
    assert store.find(new.request_id) is new


def test_of_session_lists_what_is_held_of_it() -> None:
    store = new_store()
    mine = [accepted(store, seq_id) for seq_id in range(3)]
    accepted(store, 0, session="sampler-2")
    store.evict(mine[1])
    assert store.targets.records("sampler-1") == [mine[0], mine[2]]
    assert store.targets.records("sampler-3") == []


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


def test_nothing_is_left_when_all_are_gone() -> None:
    store = new_store()
    empty = picture(store)
    for seq_id, state in enumerate(State):
        brought_to(store, state, seq_id)
    for record in store.targets.records("sampler-1"):
        store.evict(record)
    assert picture(store) == empty
    assert len(store) == 0


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


def test_a_new_record_is_not_held() -> None:
    store = new_store()
    assert store.find(new_record().request_id) is None
