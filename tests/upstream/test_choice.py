"""Rendezvous hash with bounded load, by properties: spread, stability, and the bound."""

import math
from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from asgi_gateway.upstream.choice import most, pick


class Target(msgspec.Struct):
    url: str
    in_flight: int = 0


def fleet(count: int) -> list[Target]:
    return [Target(f"http://10.0.0.{i}:8001") for i in range(count)]


@given(st.integers(1, 10_000), st.integers(1, 50))
def test_the_share_is_a_quarter_above_the_average_rounded_up(in_flight: int, count: int) -> None:
    assert most(in_flight, count) == math.ceil(in_flight * 125 / (100 * count))
    assert most(in_flight, count) * count >= in_flight  # so there is room for all


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=8),
    st.text(max_size=20),
    st.integers(0, 20),
)
def test_nobody_gets_more_than_its_share(loads: list[int], key: str, tries: int) -> None:
    targets = [Target(f"http://h{i}:1", load) for i, load in enumerate(loads)]
    chosen = pick(key, targets, tries=tries, last="http://h0:1")
    assert chosen.in_flight + 1 <= most(sum(loads) + 1, len(loads))


def test_keys_are_spread_evenly() -> None:
    targets = fleet(4)
    counts = Counter(pick(f"s:{i}", targets).url for i in range(4000))
    assert len(counts) == 4
    assert all(850 <= count <= 1150 for count in counts.values()), counts


@given(st.integers(2, 6), st.integers(0, 5), st.sets(st.text(max_size=10), max_size=50))
def test_only_keys_of_the_one_that_leaves_move(count: int, gone: int, keys: set[str]) -> None:
    targets = fleet(count)
    left = targets.pop(gone % count)
    for key in keys:
        before = pick(key, [*targets, left])
        if before is not left:
            assert pick(key, targets) is before


@given(st.text(max_size=10), st.integers(2, 6))
def test_the_order_in_which_they_are_given_does_not_matter(key: str, count: int) -> None:
    targets = fleet(count)
    assert pick(key, targets) is pick(key, targets[::-1])


@given(st.text(max_size=10), st.integers(2, 6), st.integers(1, 30))
def test_a_sample_that_failed_goes_elsewhere(key: str, count: int, tries: int) -> None:
    targets = fleet(count)
    last = pick(key, targets, tries=tries - 1, last=targets[0].url)
    assert pick(key, targets, tries=tries, last=last.url) is not last


def test_as_many_tries_as_upstreams_meet_each() -> None:
    targets, last, met = fleet(3), "", []
    for tries in range(3):
        last = pick("key", targets, tries=tries, last=last).url
        met.append(last)
    assert len(set(met)) == 3


def test_one_that_holds_what_it_gets_leaves_the_other_free() -> None:
    """However many keys prefer it: the other one answers at once."""
    hung, well = fleet(2)
    chosen = Counter[str]()
    for i in range(1000):
        target = pick(f"s:{i}", [hung, well])
        chosen[target.url] += 1
        if target is hung:
            hung.in_flight += 1
    assert hung.in_flight <= 2
    assert chosen[well.url] >= 998
