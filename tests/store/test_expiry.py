"""Deadlines against a model that is too simple to be wrong: a list, searched every time."""

import sys
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgi_gateway.store.expiry import SPARE_PLACES, Deadlines


class Naive:
    """(key, due at) in the order of their starts."""

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self.running: list[tuple[int, float]] = []

    def start(self, key: int, now: float) -> None:
        self.stop(key)
        self.running.append((key, now + self.lifetime_s))

    def stop(self, key: int) -> None:
        self.running = [entry for entry in self.running if entry[0] != key]

    def due(self, now: float, budget: int) -> list[int]:
        taken = [key for key, due_at in self.running if due_at <= now][:budget]
        self.running = [entry for entry in self.running if entry[0] not in taken]
        return taken


class Step(NamedTuple):
    verb: str
    key: int
    passed_s: float
    budget: int


STEPS = st.builds(
    Step,
    verb=st.sampled_from(["start", "start", "stop", "due"]),
    key=st.integers(0, 5),
    # Whole lifetimes too, so that a deadline is met exactly.
    passed_s=st.one_of(st.just(0.0), st.just(10.0), st.just(5.0), st.floats(0, 30)),
    budget=st.integers(0, 4),
)


@given(st.lists(STEPS, max_size=60))
def test_like_the_naive_model(steps: list[Step]) -> None:
    real: Deadlines[int] = Deadlines(10.0)
    model = Naive(10.0)
    now = 1000.0
    for step in steps:
        now += step.passed_s
        if step.verb == "start":
            real.start(step.key, now)
            model.start(step.key, now)
        elif step.verb == "stop":
            real.stop(step.key)
            model.stop(step.key)
        else:
            assert real.due(now, step.budget) == model.due(now, step.budget)
        assert len(real) == len(model.running)
        assert {key for key in range(6) if key in real} == {key for key, _ in model.running}
    assert real.due(float("inf"), 100) == [key for key, _ in model.running]


def test_due_at_the_deadline_and_not_before() -> None:
    clock: Deadlines[str] = Deadlines(10.0)
    clock.start("a", 1000.0)
    assert clock.due(1009.75, 10) == []
    assert clock.due(1010.0, 10) == ["a"]
    assert clock.due(1010.0, 10) == []


def test_a_second_start_moves_the_deadline_and_the_place_in_line() -> None:
    clock: Deadlines[str] = Deadlines(10.0)
    clock.start("a", 0.0)
    clock.start("b", 1.0)
    clock.start("a", 2.0)
    assert clock.due(11.0, 10) == ["b"]
    assert clock.due(12.0, 10) == ["a"]


def test_what_the_budget_leaves_is_due_at_the_next_call() -> None:
    clock: Deadlines[int] = Deadlines(1.0)
    for key in range(5):
        clock.start(key, 0.0)
    assert [clock.due(1.0, 2) for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_a_stopped_clock_leaves_nothing_behind() -> None:
    clock: Deadlines[int] = Deadlines(10.0)
    for key in range(1000):
        clock.start(key, 0.0)
        clock.stop(key)
    assert not clock.stop(7), "stopping what does not run is nothing"
    assert len(clock) == 0
    assert repr(clock) == "<Deadlines 10 s, 0 running>"


def places(clock: Deadlines[int]) -> int:
    """Of its dict, the empty ones included, as far as its size tells."""
    return sys.getsizeof(clock._started_at) // 40


@pytest.mark.parametrize("end", ["stop", "due", "restart"])
def test_the_places_of_a_burst_are_given_back(end: str) -> None:
    """Or every look at the front would walk over them, and their memory would stay."""
    clock: Deadlines[int] = Deadlines(10.0)
    for key in range(100_000):
        clock.start(key, 0.0)
    if end == "stop":
        for key in range(99_990):
            clock.stop(key)
    elif end == "due":
        while len(clock) > 10:
            clock.due(10.0, 5)
    else:
        for key in range(99_990):
            clock.stop(key)
        for _ in range(1000):
            for key in range(99_990, 100_000):
                clock.start(key, 1.0)
    assert len(clock) == 10
    assert places(clock) < 3 * SPARE_PLACES
    assert [key for key, _ in clock] == list(range(99_990, 100_000))
    assert clock.oldest(2) == [99_990, 99_991]
