"""MemoryStore under random event orders: whatever comes, its books agree with a recount.

The model knows of each record only its state, by the table, and what it should be charged; the
store's own numbers are compared with sums over the model after every step.
"""

import contextlib
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asgi_gateway.errors import IllegalTransition, Overloaded, Unsupported
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Failure, Lost, Record
from asgi_gateway.store.states import LATE, SETTLED, TABLE, Event, State
from tests.store.model import Expected
from tests.store.records import DELIVERED_S, WORK_S, new_record, new_store
from tests.support.clock import ManualClock
from tests.support.effort import machine

MAX_IN_FLIGHT, MAX_BYTES = 6, 600
# Large enough that settled results are often what stands in the way.
RESULT_BYTES = 150
UNFINISHED = (State.QUEUED, State.RUNNING)
# Whole lifetimes too, so that a deadline is met exactly.
PASSED_S = st.sampled_from([0.0, 1.0, DELIVERED_S, DELIVERED_S - 1, WORK_S, WORK_S - 1, 5000.0])


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store: MemoryStore = new_store(max_in_flight=MAX_IN_FLIGHT, max_bytes=MAX_BYTES)
        self.all: list[Expected] = []
        self.late = 0
        self.overdue: list[Record] = []

    @property
    def now(self) -> float:
        return self.clock.now()

    def held(self, *states: State) -> list[Expected]:
        return [e for e in self.all if e.state in states]

    def allowed(self, expected: Expected, event: Event) -> bool:
        """Whether the table lets the event through; counts the late."""
        self.late += TABLE[expected.state][event] is LATE
        return isinstance(TABLE[expected.state][event], State)

    @initialize(sizes=st.lists(st.integers(1, 80), min_size=1, max_size=3))
    def begin(self, sizes: list[int]) -> None:
        for seq_id, size in enumerate(sizes):
            self._accept("sampler-1", seq_id, size, 100)

    # --- verbs, on any record, in any order ---

    @rule(
        session=st.sampled_from(["sampler-1", "sampler-2"]),
        seq_id=st.integers(0, 4),
        size=st.integers(1, 200),
        reserve=st.integers(0, 700),
    )
    def submit(self, session: str, seq_id: int, size: int, reserve: int) -> None:
        same = [
            e.record
            for e in self.all
            if e.state is not State.GONE
            and (e.record.sampling_session_id, e.record.seq_id) == (session, seq_id)
        ]
        assert len(same) <= 1
        found = self.store.submitted(session, seq_id, b"digest")
        if isinstance(found, Lost):
            # Gone before its client knew: accepted again, and never beside one that is held.
            assert not same
            assert [
                e.record.request_id for e in self.all if e.lost and e.key == (session, seq_id)
            ] == [found.request_id]
        else:
            assert found is (same[0] if same else None)
        if isinstance(found, Record):
            with contextlib.suppress(Unsupported):
                self.store.submitted(session, seq_id, b"another")
                raise AssertionError("another body was taken for the same sample")
            return
        fits = (
            len(self.held(*UNFINISHED)) < MAX_IN_FLIGHT
            and sum(e.charged_bytes for e in self.all) + size <= MAX_BYTES
        )
        try:
            self.store.admit(size)
        except Overloaded:
            assert not fits
            return
        assert fits
        self._accept(session, seq_id, size, reserve)

    def _accept(self, session: str, seq_id: int, size: int, reserve: int) -> None:
        record = new_record(seq_id, session=session, body=b"x" * size, reserve=reserve)
        self.store.accept(record)
        accepted = Expected(record)
        for expected in self.all:
            if expected.key == accepted.key:
                expected.lost = False  # the new sample stands for it
        self.all.append(accepted)

    @rule(data=st.data(), event=st.sampled_from(list(Event)))
    def anything(self, data: Any, event: Event) -> None:
        """Any event on any record, the impossible ones too."""
        if self.all:
            self._do(data.draw(st.sampled_from(self.all)), event)

    @precondition(lambda self: self.held(State.QUEUED))
    @rule(data=st.data())
    def dispatch(self, data: Any) -> None:
        expected = data.draw(st.sampled_from(self.held(State.QUEUED)))
        charged = sum(e.charged_bytes for e in self.all)
        assert self.store.has_room(expected.record) is (
            not self.held(State.RUNNING) or charged + expected.record.reserve_bytes <= MAX_BYTES
        )
        self._do(expected, Event.START)

    @precondition(lambda self: self.held(State.RUNNING))
    @rule(data=st.data(), event=st.sampled_from([Event.SUCCEED, Event.FAIL, Event.RETRY]))
    def outcome(self, data: Any, event: Event) -> None:
        self._do(data.draw(st.sampled_from(self.held(State.RUNNING))), event)

    @precondition(lambda self: self.held(*SETTLED))
    @rule(data=st.data(), then=st.sampled_from([None, None, Event.EVICT]))
    def fetched(self, data: Any, then: Event | None) -> None:
        """Delivered, and with an acknowledgement evicted at once."""
        expected = data.draw(st.sampled_from(self.held(*SETTLED)))
        self._deliver(expected)
        if then is not None:
            self._do(expected, then)

    def _do(self, expected: Expected, event: Event) -> None:
        store, record, now = self.store, expected.record, self.now
        allowed = self.allowed(expected, event)
        try:
            if event is Event.START:
                done = store.start(record, now)
            elif event is Event.RETRY:
                done = store.retry(record, now)
            elif event is Event.SUCCEED:
                done = store.succeed(record, b"r" * RESULT_BYTES, now)
            elif event is Event.FAIL:
                done = store.fail(record, Failure("f" * 9, "server"), now)
            elif event is Event.CANCEL:
                done = store.cancel(record, now)
            else:
                done = store.evict(record)
        except IllegalTransition:
            done = False
        assert done is allowed
        if not allowed:
            return
        if event is Event.START:
            expected.state = State.RUNNING
            expected.reserved_bytes = record.reserve_bytes
            expected.clock = ("work", now + WORK_S)
        elif event is Event.RETRY:
            expected.state, expected.reserved_bytes, expected.clock = State.QUEUED, 0, None
        elif event is Event.SUCCEED:
            expected.settle(State.SUCCEEDED, RESULT_BYTES, now)
        elif event is Event.FAIL:
            expected.settle(State.FAILED, 9, now)
        elif event is Event.CANCEL:
            expected.settle(State.CANCELLED, 0, now)
        else:
            expected.gone()

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def answer_begins(self, data: Any) -> None:
        expected = data.draw(st.sampled_from(self.all))
        self.store.drop_prompt(expected.record)
        expected.body_bytes = 0

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def deliver(self, data: Any) -> None:
        self._deliver(data.draw(st.sampled_from(self.all)))

    def _deliver(self, expected: Expected) -> None:
        self.store.delivered(expected.record, self.now)
        if expected.state in SETTLED:
            expected.clock = ("delivered", self.now + DELIVERED_S)

    @precondition(lambda self: self.all)
    @rule(data=st.data(), mine=st.booleans())
    def acknowledge(self, data: Any, mine: bool) -> None:
        """Some of all ids that there ever were, twice, and one that never was."""
        told = data.draw(st.lists(st.sampled_from(self.all), max_size=3))
        ids = [e.record.request_id for e in told]
        self.store.acknowledge([*ids, "id-x", *ids], "caller" if mine else "another")
        for expected in told if mine else []:
            expected.lost = False
            if expected.state in SETTLED:
                expected.gone()

    @precondition(lambda self: self.held(State.SUCCEEDED))
    @rule(data=st.data())
    def old_client(self, data: Any) -> None:
        """The first delivery as JSON keeps that form too."""
        expected = data.draw(st.sampled_from(self.held(State.SUCCEEDED)))
        if not expected.json_bytes:
            self.store.keep_json(expected.record, b"j" * 33)
            expected.json_bytes = 33

    @precondition(lambda self: self.held(State.QUEUED))
    @rule(data=st.data(), budget=st.integers(1, 3))
    def make_room(self, data: Any, budget: int) -> None:
        """For a sample that could not start: the oldest delivered go first, no more than needed."""
        queued = data.draw(st.sampled_from(self.held(State.QUEUED))).record
        settled = {e.record: e for e in self.held(*SETTLED)}
        in_order = [r for c in (self.store._delivered, self.store._undelivered) for r, _ in c]
        assert set(in_order) == set(settled)
        expected: list[Expected] = []
        charged = sum(e.charged_bytes for e in self.all)
        unsettled = charged - sum(e.charged_bytes for e in settled.values())
        if self.held(State.RUNNING) and unsettled + queued.reserve_bytes <= MAX_BYTES:
            while charged + queued.reserve_bytes > MAX_BYTES:
                expected.append(settled[in_order[len(expected)]])
                charged -= expected[-1].charged_bytes
        expected = expected[:budget]
        assert self.store.make_room(queued, budget) == len(expected)
        for each in expected:
            assert each.clock is not None
            each.gone(lost=each.clock[0] == "undelivered")

    @rule(passed_s=PASSED_S, budget=st.integers(1, 3))
    def time_passes(self, passed_s: float, budget: int) -> None:
        """Sweeps until nothing more is due, as the ticker does over its turns."""
        self.clock.advance(passed_s)
        for _ in range(len(self.all) + 1):
            swept = self.store.sweep(self.now, budget)
            assert swept.evicted <= 2 * budget
            assert len(swept.overdue) <= budget
            for record in swept.overdue:
                self.overdue.append(record)
                self._expected(record).clock = None
        for expected in self.all:
            if expected.clock is not None and expected.clock[1] <= self.now:
                assert expected.clock[0] != "work", "overdue work was not named"
                expected.gone(lost=expected.clock[0] == "undelivered")

    @precondition(lambda self: self.overdue)
    @rule()
    def fail_the_overdue(self) -> None:
        """What sampling does with what a sweep named; a result may have come first."""
        for record in self.overdue:
            self._do(self._expected(record), Event.FAIL)
        self.overdue.clear()

    def _expected(self, record: Record) -> Expected:
        return next(e for e in self.all if e.record is record)

    # --- the books ---

    @invariant()
    def states_are_the_models(self) -> None:
        for expected in self.all:
            assert expected.record.state is expected.state
        assert sum(self.store.late_events) == self.late

    @invariant()
    def counts_are_a_recount(self) -> None:
        for state in State:
            held = 0 if state is State.GONE else len(self.held(state))
            assert self.store.counts[state] == held
        assert self.store.in_flight == len(self.held(*UNFINISHED))
        assert len(self.store) == len([e for e in self.all if e.state is not State.GONE])

    @invariant()
    def bytes_are_a_sum(self) -> None:
        for expected in self.all:
            assert expected.record.charged_bytes == expected.charged_bytes >= 0
        assert self.store.charged_bytes == sum(e.charged_bytes for e in self.all)
        assert self.store.results_bytes == sum(e.result_bytes for e in self.all)
        settled = self.held(*SETTLED)
        assert self.store.budget.settled_bytes == sum(e.charged_bytes for e in settled)

    @invariant()
    def clocks_are_those_of_held_records(self) -> None:
        running = {
            name: dict(clock)
            for name, clock in (
                ("work", self.store._work),
                ("undelivered", self.store._undelivered),
                ("delivered", self.store._delivered),
            )
        }
        expected: dict[str, dict[Record, float]] = {name: {} for name in running}
        for e in self.all:
            if e.clock is not None:
                expected[e.clock[0]][e.record] = e.clock[1]
        assert running == expected
        for clock in running.values():
            assert list(clock.values()) == sorted(clock.values()), "deadlines out of order"

    @invariant()
    def the_index_leads_to_what_is_held(self) -> None:
        held = [e.record for e in self.all if e.state is not State.GONE]
        assert self.store._records == {record.request_id: record for record in held}
        index = {
            (session, seq_id): record
            for session, target in self.store.targets._targets.items()
            for seq_id, record in target.by_seq.items()
        }
        assert index == {(r.sampling_session_id, r.seq_id): r for r in held}
        targets = self.store.targets._targets.values()
        assert all(target.by_seq or target.lost for target in targets), "an empty target"

    @invariant()
    def lost_is_what_its_client_was_not_told(self) -> None:
        lost = {e.record.request_id for e in self.all if e.lost}
        assert self.store.targets._lost.keys() == lost
        assert lost == {
            note.request_id
            for target in self.store.targets._targets.values()
            for note in target.lost.values()
        }

    @invariant()
    def only_what_may_be_sent_keeps_its_prompt(self) -> None:
        for expected in self.all:
            kept = expected.record.body
            assert len(kept or b"") == expected.body_bytes
            if expected.state is State.GONE:
                assert expected.record.result is None
                assert expected.record.result_json is None


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = machine(runs=100, steps=60)
