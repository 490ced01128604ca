"""Samples that go upstream again: their budget, their times, and the end of their patience."""

import random

from hypothesis import given
from hypothesis import strategies as st

from asgi_gateway.codec import Want
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import CANCELLED
from asgi_gateway.upstream.retrying import FLOOR, Repeats, RetryBudget
from asgi_gateway.upstream.window import Window


def record(number: int = 0) -> Record:
    return Record(
        request_id=f"r{number}",
        caller="c",
        sampling_session_id="s",
        seq_id=number,
        digest=b"",
        want=Want(1, False, 0, 0, 0),
        prompt_tokens=1,
        reserve_bytes=8,
        body=b"x",
        accepted_at=0.0,
        attempts=1,
    )


def test_a_window_counts_what_is_recent() -> None:
    """Everything of the last ten seconds, nothing older than eleven and the longest step."""
    draw, window, now = random.Random(1), Window(), 0.0
    told: list[tuple[float, int, int]] = []
    for _ in range(1000):
        now += draw.uniform(0, 0.2)
        window.tick(now)
        first, second = draw.randrange(2), draw.randrange(2)
        window.first += first
        window.second += second
        told.append((now, first, second))
        for index, counted in enumerate(window.recent(now), start=1):
            assert counted >= sum(entry[index] for entry in told if entry[0] > now - 10)
            assert counted <= sum(entry[index] for entry in told if entry[0] >= now - 11.3)


def test_the_window_moves() -> None:
    window = Window()
    window.first += 7
    for second in range(30):
        window.tick(float(second))
    assert window.recent(29.0) == (0, 0)
    window.clear()
    window.second += 1
    assert window.recent(29.5) == (0, 1)


@given(st.lists(st.booleans(), max_size=400), st.floats(0, 1))
def test_repeats_stay_within_their_share_and_the_floor(wants: list[bool], share: float) -> None:
    budget, sent = RetryBudget(share), [0, 0]
    for again in wants:
        if not again:
            budget.sent.first += 1
            sent[0] += 1
        elif budget.allows(5.0):
            budget.sent_again()
            sent[1] += 1
    assert sent[1] <= FLOOR + share * sent[0]


def test_the_floor_comes_again_with_time() -> None:
    budget, now = RetryBudget(0.2), 0.0
    sent = 0
    while now < 60:
        budget.sent.tick(now)
        while budget.allows(now):
            budget.sent_again()
            sent += 1
        now += 0.1
    assert 5 * FLOOR <= sent <= 7 * FLOOR


def test_those_that_wait_are_let_go_when_it_is_quiet_and_a_failure_ends_it() -> None:
    budget = RetryBudget(0.0)
    for _ in range(FLOOR):
        budget.sent_again()
    assert not budget.allows(0.0)
    budget.failed(0.0)
    assert not budget.quiet(10.0)  # nothing was answered
    budget.answered = True
    assert not budget.quiet(2.9)
    assert budget.quiet(3.0)
    budget.let_go(3)
    for _ in range(3):
        assert budget.allows(3.0)
        budget.sent_again()
    assert not budget.allows(3.0)
    budget.let_go(3)
    budget.failed(3.5)
    assert not budget.allows(3.5)


def test_a_recovery_ends_the_back_off_and_not_the_upstreams_own_wish() -> None:
    repeats = Repeats(300)
    ours, wished, soon = record(1), record(2), record(3)
    repeats.add(ours, 0.0, not_before=15.0, earliest=0.0)
    repeats.add(wished, 0.0, not_before=15.0, earliest=7.0)
    repeats.add(soon, 0.0, not_before=0.0, earliest=0.0)
    assert list(repeats.ready) == [soon]
    repeats.recovered(5.0)
    assert list(repeats.ready) == [soon, ours]
    repeats.due(6.9)
    assert list(repeats.ready) == [soon, ours]
    repeats.due(7.0)
    assert list(repeats.ready) == [soon, ours, wished]


def test_patience_ends_after_the_grace_time() -> None:
    repeats, waits = Repeats(20), record()
    repeats.add(waits, 100.0, not_before=101.0, earliest=101.0)
    assert list(repeats.expired(119.9)) == []
    assert list(repeats.expired(120.0)) == [("r0", 1)]
    assert repeats.waits_in_vain(waits, 1, 120.0)
    # It was sent again since, and became unavailable later: another grace time.
    waits.attempts, waits.unavailable_since = 2, 110.0
    assert not repeats.waits_in_vain(waits, 1, 120.0)
    assert repeats.waits_in_vain(waits, 1, 130.0)
    waits.state = CANCELLED
    assert not repeats.waits_in_vain(waits, 1, 130.0)


def test_settled_ones_leave_the_line() -> None:
    repeats = Repeats(20)
    gone, waits = record(1), record(2)
    line = repeats.ready
    for one in (gone, waits):
        repeats.add(one, 0.0, not_before=0.0, earliest=0.0)
    gone.state = CANCELLED
    repeats.drop_settled()
    assert list(line) == [waits]
