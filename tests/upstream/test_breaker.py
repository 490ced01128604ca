"""The circuit breaker by itself: what opens it, for how long, and what closes it."""

import pytest

from asgi_gateway.upstream.breaker import CLOSED, HALF_OPEN, OPEN, Breaker


def longest(_: float, most: float) -> float:
    return most


def breaker(failures: int = 5) -> Breaker:
    return Breaker(failures, 2, longest)


def opened(now: float = 0.0) -> Breaker:
    made = breaker()
    for _ in range(5):
        made.failed(made.turn, now)
    assert made.state == OPEN
    return made


def open_for(made: Breaker, now: float) -> float:
    """In steps of a tenth of a second."""
    for tenths in range(1000):
        if made.tick(now + tenths / 10):
            return tenths / 10
    raise AssertionError("it stays open")


def test_failures_in_a_row_open_it_and_an_answer_between_begins_the_row_anew() -> None:
    made = breaker()
    for _ in range(4):
        assert not made.failed(0, 1.0)
    made.succeeded(0, 1.0)
    for _ in range(4):
        assert not made.failed(0, 1.0)
    assert made.failed(0, 1.0)
    assert (made.state, made.opened) == (OPEN, 1)


def test_half_of_twenty_within_ten_seconds_open_it() -> None:
    made = breaker()
    now = 0.0
    for _ in range(9):
        made.tick(now)
        made.succeeded(0, now)
        assert not made.failed(0, now)
        now += 1
    made.succeeded(0, now)
    assert made.failed(0, now)


def test_a_third_of_failures_and_old_ones_do_not() -> None:
    made = breaker()
    for second in range(60):
        made.tick(float(second))
        made.succeeded(0, second)
        made.succeeded(0, second)
        assert not made.failed(0, second)
    made = breaker()
    for second in range(0, 300, 3):  # half of them fail, never twenty in a window
        made.tick(float(second))
        made.succeeded(0, second)
        assert not made.failed(0, second)


def test_it_is_open_for_a_second_and_then_twice_as_long_up_to_fifteen() -> None:
    made, now, spans = opened(), 0.0, []
    for _ in range(6):
        spans.append(open_for(made, now))
        now += spans[-1]
        assert made.state == HALF_OPEN
        assert made.failed(made.turn, now)
    assert spans == [1, 2, 4, 8, 15, 15]


def test_it_is_jittered_downwards_only() -> None:
    spans = set()
    for _ in range(50):
        made = Breaker(1, 1)
        made.failed(0, 0.0)
        spans.add(open_for(made, 0.0))
    assert len(spans) > 1
    assert min(spans) >= 0.5
    assert max(spans) <= 1.0


@pytest.mark.parametrize(("wish", "span"), [(0.2, 1.0), (7.0, 7.0), (1000.0, 60.0)])
def test_retry_after_makes_it_longer_within_bounds(wish: float, span: float) -> None:
    made = Breaker(1, 1, longest)
    made.failed(0, 0.0, wish)
    assert open_for(made, 0.0) == span


def test_half_open_has_room_for_a_few_and_a_sign_of_life_closes_it() -> None:
    made = opened()
    rooms = [made.has_room]
    made.tick(1.0)
    rooms.append(made.has_room)
    made.probing = 2
    rooms.append(made.has_room)
    assert made.succeeded(made.turn, 1.5)
    assert made.state == CLOSED
    assert [*rooms, made.has_room] == [False, True, False, True]


def test_what_started_before_it_opened_decides_nothing_afterwards() -> None:
    made = opened()
    assert not made.failed(0, 0.1)
    assert not made.succeeded(0, 0.1)
    made.tick(1.0)
    assert not made.succeeded(0, 1.0)
    assert not made.failed(0, 1.0)
    assert made.state == HALF_OPEN
    assert made.opened == 1


def test_failing_soon_after_it_closed_goes_on_where_it_was_and_later_begins_anew() -> None:
    made = opened()
    made.tick(1.0)
    made.succeeded(made.turn, 1.0)
    for _ in range(5):
        made.failed(made.turn, 5.0)
    assert open_for(made, 5.0) == 2
    made.succeeded(made.turn, 7.0)
    for _ in range(5):
        made.failed(made.turn, 17.0)
    assert open_for(made, 17.0) == 1


def test_hurry_half_opens_it_at_the_next_tick() -> None:
    made = opened()
    assert not made.tick(0.1)
    made.hurry()
    assert made.tick(0.1)


def test_without_a_number_of_failures_it_stays_closed() -> None:
    breaker = Breaker(0, 5)
    for now in range(1000):
        assert not breaker.failed(breaker.turn, now / 100)
    assert breaker.has_room


def test_a_few_in_a_row_of_many_in_flight_do_not_open_it_and_a_tenth_do() -> None:
    """Failures that come at once stand in a row while the others are still generating."""
    made = breaker()
    for failures in range(1, 18):
        assert not made.failed(0, 1.0, in_flight=200 - failures), failures
    assert made.failed(0, 1.0, in_flight=180)
