"""Both stores through their verbs: every cell of the table, the clocks, the limits, the index, and
what pollers are told."""

import pytest

from asgi_gateway.errors import IllegalTransition, Overloaded, Unsupported
from asgi_gateway.store.states import BUG, LATE, TABLE, Event, State
from tests.store.records import (
    BODY_BYTES,
    CHARGED,
    DELIVERED_S,
    FAILURE,
    RESERVED_BYTES,
    RESULT,
    START_AT,
    UNDELIVERED_S,
    VERBS,
    WORK_S,
    NewStore,
    accepted,
    brought_to,
    clock_names,
    clocks,
    held_of,
    is_lost,
    new_record,
    page,
    picture,
    reported,
)

RUNNING_CLOCK = {
    State.RUNNING: ("work", WORK_S),
    State.SUCCEEDED: ("undelivered", UNDELIVERED_S),
    State.FAILED: ("undelivered", UNDELIVERED_S),
    State.CANCELLED: ("undelivered", UNDELIVERED_S),
}
CELLS = [(state, event) for state in State for event in Event]


# --- the table, cell by cell --------------------------------------------------------------------


@pytest.mark.parametrize(("state", "event"), CELLS, ids=lambda value: value.name.lower())
def test_a_cell(new_store: NewStore, state: State, event: Event) -> None:
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
    assert clocks(store) == {name: expected[name] for name in clock_names(store)}

    held = cell is not State.GONE
    assert (store.find(record.request_id) is record) is held
    assert (store.submitted(record.sampling_session_id, 0, record.digest) is record) is held


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name.lower())
def test_prompt_bytes_are_kept_only_while_they_may_be_sent(
    new_store: NewStore, state: State
) -> None:
    store = new_store()
    record = brought_to(store, state)
    assert (record.body is not None) is (state in (State.QUEUED, State.RUNNING))


def test_the_outcome_is_kept_as_it_came(new_store: NewStore) -> None:
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


def test_a_queued_sample_can_fail_and_be_cancelled(new_store: NewStore) -> None:
    store = new_store()
    failed, cancelled = accepted(store, 0), accepted(store, 1)
    assert store.fail(failed, FAILURE, START_AT)
    assert store.cancel(cancelled, START_AT)
    assert store.charged_bytes == len(FAILURE.text)
    assert clocks(store)["undelivered"].keys() == {failed.request_id, cancelled.request_id}


def test_late_results_are_counted_each(new_store: NewStore) -> None:
    store = new_store()
    record = brought_to(store, State.CANCELLED)
    for _ in range(3):
        assert not store.succeed(record, b"too late", START_AT)
    assert sum(store.late_events) == 3
    assert record.result is None


# --- lifetimes (policies 1) ---------------------------------------------------------------------


def test_waiting_has_no_clock(new_store: NewStore) -> None:
    store = new_store()
    record = accepted(store)
    swept = store.sweep(START_AT + 1e9, 1000)
    assert (swept.overdue, swept.evicted) == ([], 0)
    assert store.find(record.request_id) is record


@pytest.mark.parametrize("settle", [Event.SUCCEED, Event.FAIL, Event.CANCEL])
def test_an_undelivered_outcome_is_kept_its_time(new_store: NewStore, settle: Event) -> None:
    store = new_store()
    record = brought_to(store, State.RUNNING)
    VERBS[settle](store, record, START_AT)
    assert store.sweep(START_AT + UNDELIVERED_S - 0.5, 1000).evicted == 0
    assert store.sweep(START_AT + UNDELIVERED_S, 1000).evicted == 1
    assert record.state is State.GONE
    assert store.find(record.request_id) is None


def test_the_delivered_clock_replaces_the_undelivered_one(new_store: NewStore) -> None:
    store = new_store()
    record = brought_to(store, State.SUCCEEDED)
    store.delivered(record, START_AT + 10)
    assert store.sweep(START_AT + 10 + DELIVERED_S - 0.5, 1000).evicted == 0
    assert store.sweep(START_AT + 10 + DELIVERED_S, 1000).evicted == 1


def test_the_delivered_clock_starts_again_at_each_delivery(new_store: NewStore) -> None:
    store = new_store()
    record = brought_to(store, State.SUCCEEDED)
    for delivery in range(20):  # 5,980 s in all, far beyond both lifetimes
        now = START_AT + delivery * 299
        assert store.sweep(now, 1000).evicted == 0
        store.delivered(record, now)
    assert store.sweep(now + DELIVERED_S - 0.5, 1000).evicted == 0
    assert store.sweep(now + DELIVERED_S, 1000).evicted == 1


def test_an_evicted_delivery_leaves_no_clock(new_store: NewStore) -> None:
    store = new_store()
    record = brought_to(store, State.SUCCEEDED)
    store.delivered(record, START_AT)
    assert store.evict(record)
    assert clocks(store) == {name: {} for name in clock_names(store)}
    store.delivered(record, START_AT)
    assert clocks(store) == {name: {} for name in clock_names(store)}


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.GONE])
def test_what_has_no_outcome_is_not_delivered(new_store: NewStore, state: State) -> None:
    store = new_store()
    record = brought_to(store, state)
    before = picture(store, record)
    store.delivered(record, START_AT)
    assert picture(store, record) == before


def test_a_sweep_has_a_budget_and_resumes(new_store: NewStore) -> None:
    store = new_store()
    records = [brought_to(store, State.SUCCEEDED, seq_id) for seq_id in range(5)]
    later = START_AT + UNDELIVERED_S
    assert [store.sweep(later, 2).evicted for _ in range(4)] == [2, 2, 1, 0]
    assert {record.state for record in records} == {State.GONE}
    assert all(is_lost(store, record) for record in records), "nobody was told"


def test_what_was_delivered_expires_without_a_note(new_store: NewStore) -> None:
    store = new_store()
    told, untold = brought_to(store, State.SUCCEEDED), brought_to(store, State.SUCCEEDED, 1)
    cancelled = brought_to(store, State.CANCELLED, 2)
    assert store.delivered(told, START_AT + UNDELIVERED_S - DELIVERED_S)
    assert not store.delivered(told, START_AT + UNDELIVERED_S - DELIVERED_S)
    swept = store.sweep(START_AT + UNDELIVERED_S, 10)
    assert (swept.evicted, swept.unfetched) == (3, 1), "who cancels does not fetch"
    assert [is_lost(store, record) for record in (told, untold, cancelled)] == [False, True, True]


# --- admission and bytes ------------------------------------------------------------------------


@pytest.mark.parametrize(("held", "admitted"), [(2, True), (3, False), (4, False)])
def test_admission_by_count(new_store: NewStore, held: int, admitted: bool) -> None:
    store = new_store(max_in_flight=3)
    for seq_id in range(held):
        accepted(store, seq_id)
    if admitted:
        store.admit(1)
    else:
        with pytest.raises(Overloaded, match=f"{held} samples in flight"):
            store.admit(1)


def test_only_unsettled_samples_count(new_store: NewStore) -> None:
    store = new_store(max_in_flight=2)
    for seq_id, state in enumerate(State):
        brought_to(store, state, seq_id)
    with pytest.raises(Overloaded):
        store.admit(0)
    store.cancel(held_of(store, "sampler-1")[0], START_AT)
    store.admit(0)


@pytest.mark.parametrize(("nbytes", "admitted"), [(59, True), (60, True), (61, False)])
def test_admission_by_bytes(new_store: NewStore, nbytes: int, admitted: bool) -> None:
    store = new_store(max_bytes=100)
    accepted(store)
    assert store.charged_bytes == 40
    if admitted:
        store.admit(nbytes)
    else:
        with pytest.raises(Overloaded, match="the limit is 100"):
            store.admit(nbytes)


def test_a_refusal_is_429_with_retry_after(new_store: NewStore) -> None:
    store = new_store(max_bytes=100)
    accepted(store)
    with pytest.raises(Overloaded) as caught:
        store.admit(100)
    assert caught.value.status == 429
    assert caught.value.retry_after_s


def test_admission_changes_nothing(new_store: NewStore) -> None:
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
def test_the_reservation_is_given_back(new_store: NewStore, end: Event) -> None:
    store = new_store()
    record = brought_to(store, State.RUNNING)
    assert store.charged_bytes == BODY_BYTES + RESERVED_BYTES
    VERBS[end](store, record, START_AT)
    assert store.charged_bytes == CHARGED[record.state]


# --- the same sample again (policies 4) ---------------------------------------------------------


@pytest.mark.parametrize(
    "state", [state for state in State if state is not State.GONE], ids=lambda state: state.name
)
def test_the_same_body_finds_the_same_record_at_any_stage(
    new_store: NewStore, state: State
) -> None:
    store = new_store()
    record = brought_to(store, state)
    assert store.submitted("sampler-1", 0, b"digest") is record


@pytest.mark.parametrize(
    "state", [state for state in State if state is not State.GONE], ids=lambda state: state.name
)
def test_another_body_is_refused_with_422(new_store: NewStore, state: State) -> None:
    """The SDK repeats 409 blindly."""
    store = new_store()
    record = brought_to(store, state)
    before = picture(store, record)
    with pytest.raises(Unsupported, match="seq_id 0") as caught:
        store.submitted("sampler-1", 0, b"another")
    assert caught.value.status == 422
    assert picture(store, record) == before


def test_seq_ids_belong_to_their_sampling_session(new_store: NewStore) -> None:
    store = new_store()
    accepted(store)
    assert store.submitted("sampler-1", 1, b"another") is None
    assert store.submitted("sampler-2", 0, b"another") is None


def test_after_eviction_the_same_seq_id_is_a_new_sample(new_store: NewStore) -> None:
    store = new_store()
    old = brought_to(store, State.GONE)
    assert store.submitted("sampler-1", 0, b"another") is None
    new = accepted(store, 0, digest=b"another")
    assert not store.evict(old), "late"
    assert store.submitted("sampler-1", 0, b"another") is new
    assert store.find(new.request_id) is new


def test_of_session_lists_what_is_held_of_it(new_store: NewStore) -> None:
    store = new_store()
    mine = [accepted(store, seq_id) for seq_id in range(3)]
    accepted(store, 0, session="sampler-2")
    store.evict(mine[1])
    assert held_of(store, "sampler-1") == [mine[0], mine[2]]
    assert held_of(store, "sampler-3") == []


def test_nothing_is_left_when_all_are_gone(new_store: NewStore) -> None:
    store = new_store()
    empty = picture(store)
    for seq_id, state in enumerate(State):
        brought_to(store, state, seq_id)
    for record in held_of(store, "sampler-1"):
        store.evict(record)
    assert picture(store) == empty
    assert len(store) == 0


def test_a_new_record_is_not_held(new_store: NewStore) -> None:
    store = new_store()
    assert store.find(new_record().request_id) is None


# --- acknowledged and lost ----------------------------------------------------------------------


def test_what_is_acknowledged_is_freed_at_once(new_store: NewStore) -> None:
    store = new_store()
    empty = picture(store)
    records = [
        brought_to(store, state, number)
        for number, state in enumerate((State.SUCCEEDED, State.FAILED, State.CANCELLED))
    ]
    ids = [record.request_id for record in records]
    before = picture(store, *records)
    store.acknowledge(ids, "another")
    assert picture(store, *records) == before
    store.acknowledge([*ids, "id-x", *ids], "caller")
    assert picture(store) == empty


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_what_is_unfinished_is_not_acknowledged(new_store: NewStore, state: State) -> None:
    store = new_store()
    record = brought_to(store, state)
    before = picture(store, record)
    store.acknowledge([record.request_id], "caller")
    assert picture(store, record) == before


@pytest.mark.parametrize(
    "state",
    [State.QUEUED, State.RUNNING, State.SUCCEEDED, State.FAILED, State.CANCELLED],
    ids=lambda state: state.name.lower(),
)
def test_an_untold_eviction_leaves_a_note_until_it_is_told(
    new_store: NewStore, state: State
) -> None:
    store = new_store()
    empty = picture(store)
    record = brought_to(store, state)
    assert store.evict(record, told=False)
    assert is_lost(store, record)
    assert store.find(record.request_id) is None
    assert (store.charged_bytes, store.in_flight, sum(store.counts)) == (0, 0, 0)
    assert not store.told_lost(record.request_id, "another")
    assert store.told_lost(record.request_id, "caller")
    assert not store.told_lost(record.request_id, "caller")
    assert picture(store) == empty


@pytest.mark.parametrize("state", [State.QUEUED, State.SUCCEEDED])
def test_an_acknowledgement_tells_of_a_loss_as_well(new_store: NewStore, state: State) -> None:
    store = new_store()
    record = brought_to(store, state)
    store.evict(record, told=False)
    store.acknowledge([record.request_id], "caller")
    assert not is_lost(store, record)


def test_to_tell_of_a_loss_drops_no_outcome(new_store: NewStore) -> None:
    store = new_store()
    record = brought_to(store, State.SUCCEEDED)
    assert not store.told_lost(record.request_id, "caller")
    assert store.find(record.request_id) is record


# --- completion pages ---------------------------------------------------------------------------


def test_a_log_tells_what_settled_in_order(new_store: NewStore) -> None:
    store = new_store()
    nothing, begin = page(store, "sampler-1", 0, 0)
    assert nothing == []
    settled = []
    for number, state in ((2, State.SUCCEEDED), (0, State.FAILED), (1, State.CANCELLED)):
        settled.append(brought_to(store, state, number))
        reported(store, settled[-1])
    brought_to(store, State.RUNNING, 3)
    found, cursor = page(store, "sampler-1", 0, begin)
    assert found == settled
    assert [entry.result for entry in found] == [RESULT, None, None]
    assert cursor > begin
    assert page(store, "sampler-1", 0, cursor) == ([], cursor)


@pytest.mark.parametrize("foreign", [-1, 0, 2**52, 2**60, 2**70])
def test_a_cursor_from_outside_is_told_all_that_is_open(new_store: NewStore, foreign: int) -> None:
    store = new_store()
    page(store, "sampler-1", 0, 0)
    settled = [brought_to(store, State.SUCCEEDED, number) for number in range(5)]
    for record in settled:
        reported(store, record)
    found, cursor = page(store, "sampler-1", 0, 0, limit=2)
    assert found == settled[:2]
    rest = page(store, "sampler-1", 0, cursor, limit=10)
    assert rest[0] == settled[2:]
    assert page(store, "sampler-1", 0, foreign, limit=10) == rest
    assert page(store, "sampler-1", 0, cursor, limit=10) == rest, "a lost answer costs nothing"
    assert page(store, "sampler-1", 0, rest[1]) == ([], rest[1])
    assert page(store, "sampler-1", 0, cursor) == ([], rest[1]), "it has read on before"


def test_clones_have_logs_of_their_own(new_store: NewStore) -> None:
    store = new_store()
    seq_ids = (0, 999_999_999, 1_000_000_000, 2**63 - 1)
    records = [brought_to(store, State.SUCCEEDED, seq_id) for seq_id in seq_ids]
    assert page(store, "sampler-1", 0, 0)[0] == records[:2]
    assert page(store, "sampler-1", 1, 0)[0] == [records[2]]
    assert page(store, "sampler-1", (2**63 - 1) // 10**9, 0)[0] == [records[3]]
    assert page(store, "sampler-1", 2, 0)[0] == []
    assert page(store, "sampler-2", 0, 0)[0] == []


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.SUCCEEDED])
def test_a_lost_sample_is_told_as_failed(new_store: NewStore, state: State) -> None:
    store = new_store()
    page(store, "sampler-1", 0, 0)
    before, lost = brought_to(store, State.SUCCEEDED), brought_to(store, state, 1)
    reported(store, before)
    if state is State.SUCCEEDED:
        reported(store, lost)
    store.evict(lost, told=False)
    if state is not State.SUCCEEDED:
        reported(store, lost)
    after = brought_to(store, State.SUCCEEDED, 2)
    reported(store, after)
    found, _ = page(store, "sampler-1", 0, 0)
    assert found == [before, lost, after], "and in its place"
    assert [entry.result for entry in found] == [RESULT, None, RESULT]


def test_a_first_poll_hears_of_what_was_before_it(new_store: NewStore) -> None:
    store = new_store()
    settled, lost = brought_to(store, State.SUCCEEDED), brought_to(store, State.QUEUED, 1)
    store.evict(lost, told=False)
    found, _ = page(store, "sampler-1", 0, 0)
    assert {entry.request_id for entry in found} == {settled.request_id, lost.request_id}


def test_a_sample_that_is_lost_is_accepted_again_and_told_again(new_store: NewStore) -> None:
    store = new_store()
    _, cursor = page(store, "sampler-1", 0, 0)
    record = brought_to(store, State.RUNNING)
    store.evict(record, told=False)
    reported(store, record)
    _, cursor = page(store, "sampler-1", 0, cursor)
    again = new_record(0)
    again.request_id = record.request_id
    store.accept(again)
    assert not is_lost(store, record)
    store.start(again, START_AT)
    store.succeed(again, RESULT, START_AT)
    reported(store, again)
    found, _ = page(store, "sampler-1", 0, cursor)
    assert found == [again]
    assert found[0].result == RESULT
