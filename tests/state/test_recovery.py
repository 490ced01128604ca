"""What events add up to, against the naive owner, and with events missing or doubled."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgi_gateway.state.events import (
    Accepted,
    Booted,
    Closed,
    Event,
    Joined,
    SamplingMade,
    SessionFinished,
    SessionForgotten,
    SessionMade,
)
from asgi_gateway.state.recovery import Recovered, replay
from tests.state.owner import Owner, same, small_history

SESSION = SessionMade("session", "alice")
SAMPLER = SamplingMade("sampler", "session", 0, "up", "base", "salt", None)


def sample(name: str, sampler: str = "sampler", caller: str = "alice") -> Accepted:
    # Strings of its own, as after decoding.
    return Accepted(name, "".join(list(caller)), "".join(list(sampler)), 1, 16 * b"d")


def test_nothing() -> None:
    assert replay([]) == Recovered()


def test_the_small_history() -> None:
    owner = Owner()
    recovered = replay(small_history(owner))
    assert same(recovered, owner.recovered())
    assert recovered.dropped == 0


@given(st.integers(0, 2**32), st.integers(0, 25))
def test_everything_may_come_twice_later(seed: int, since: int) -> None:
    """As when a crash leaves both the old segments and their copy."""
    owner = Owner()
    events = small_history(owner)
    assert same(replay([*events, *owner.live()]), owner.recovered())
    assert same(replay([*owner.live(), *events[since:]]), owner.recovered())
    repeated = [e for e in events for _ in range(1 + random.Random(seed + since).randrange(2))]
    assert same(replay(repeated), owner.recovered())


def test_boots() -> None:
    recovered = replay([Booted("a", 10), Booted("b", 30), Booted("c", 20), Booted("a", 10)])
    assert recovered.epochs == ["a", "b", "c"]
    assert recovered.cursor_base == 30


def test_clones_are_those_of_known_sampling_sessions_and_only_grow() -> None:
    joined = [Joined("sampler", 2), Joined("sampler", 1), Joined("other", 5)]
    assert replay([SESSION, SAMPLER, *joined]).clones == {"sampler": 2}


def test_order_of_acceptance() -> None:
    events: list[Event] = [SESSION, SAMPLER]
    events += [sample("a"), sample("b"), sample("c"), Closed("a"), sample("b"), sample("a")]
    assert [s.request_id for s in replay(events).samples] == ["b", "c", "a"]


def test_closed_for_an_unknown_id() -> None:
    assert replay([SESSION, SAMPLER, Closed("never"), sample("a")]).samples == [sample("a")]


@pytest.mark.parametrize("end", [SessionFinished("session"), SessionForgotten("session")])
def test_samples_of_ended_sessions_are_dropped_whenever_they_were_accepted(end: Event) -> None:
    recovered = replay([SESSION, SAMPLER, sample("a"), end, sample("b")])
    assert recovered.samples == []
    assert recovered.dropped == 2


def test_a_finished_session_is_known_and_a_forgotten_one_is_not() -> None:
    finished = replay([SESSION, SAMPLER, Joined("sampler", 1), SessionFinished("session")])
    assert finished.sessions == {"session": SESSION}
    assert finished.finished == {"session"}
    assert finished.sampling == {"sampler": SAMPLER}
    forgotten = replay(
        [SESSION, SAMPLER, Joined("sampler", 1), SessionFinished("session"),
         SessionForgotten("session"), SessionForgotten("never")]
    )  # fmt: skip
    assert forgotten == Recovered()


def test_a_session_that_is_made_again_is_not_finished() -> None:
    ends: list[Event] = [SessionFinished("session"), SessionForgotten("session")]
    again = replay([SESSION, *ends, SESSION, SAMPLER, sample("a")])
    assert (again.finished, again.samples) == (set(), [sample("a")])


def test_what_refers_to_a_lost_record_is_left_out() -> None:
    recovered = replay([SAMPLER, sample("a"), Joined("sampler", 1), SessionFinished("session")])
    assert recovered == Recovered(dropped=1)


def test_samples_share_strings_with_their_session() -> None:
    (kept,) = replay([SESSION, SAMPLER, sample("a")]).samples
    assert kept.caller is SESSION.caller
    assert kept.sampling_session_id is SAMPLER.sampling_session_id
    # Never at the price of a value.
    (other,) = replay([SESSION, SAMPLER, sample("a", caller="bob")]).samples
    assert other.caller == "bob"
