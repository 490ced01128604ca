"""The configured upstreams: which are available, what they are called, and what counts."""

import pytest

from asgi_gateway.admission import Admission
from asgi_gateway.configuration import load
from asgi_gateway.errors import (
    Aborted,
    EngineFault,
    Interrupted,
    NotFound,
    Overloaded,
    Rejected,
    Unavailable,
    UpstreamError,
)
from asgi_gateway.upstream.breaker import CLOSED, HALF_OPEN, OPEN
from asgi_gateway.upstream.exchange import Exchange
from asgi_gateway.upstream.fleet import Fleet
from tests.support.told import Told

URLS = ("http://a:secret@h1:8001/x", "https://h2")


class Kept:
    """A fleet, its admission, and how often it said that one has recovered."""

    def __init__(self, *urls: str) -> None:
        settings = load({"upstream.urls": list(urls or URLS)}, environ={}).settings.upstream
        self.admission = Admission()
        self.recoveries = 0
        self.sent: set[Exchange] = set()
        self.fleet = Fleet(settings, admission=self.admission, recovered=self._recovered)

    def _recovered(self) -> None:
        self.recoveries += 1

    def fail(self, index: int, times: int, error: UpstreamError, now: float = 0.0) -> None:
        upstream = self.fleet.upstreams[index]
        for _ in range(times):
            self.fleet.failed(upstream, upstream.breaker.turn, error, now)

    def tick(self, now: float) -> None:
        self.fleet.tick(now, self.sent.__contains__)


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        (("http://user:secret@host:8001/path?q=1",), ["host:8001"]),
        (("https://host", "http://host"), ["host:443", "host:80"]),
        (("http://h:1/a", "http://h:1/b", "http://u@h:1"), ["h:1", "h:1#2", "h:1#3"]),
        (("http://[::1]:8001",), ["[::1]:8001"]),
        (("nonsense",), ["no-host:80"]),
    ],
)
def test_names_are_of_the_configuration_unique_and_without_secrets(
    urls: tuple[str, ...], expected: list[str]
) -> None:
    assert [upstream.name for upstream in Kept(*urls).fleet.upstreams] == expected


@pytest.mark.parametrize(
    "error",
    [Unavailable("x"), EngineFault("x"), Interrupted("x")],
    ids=lambda error: type(error).__name__,
)
def test_five_failures_make_one_unavailable(error: UpstreamError) -> None:
    kept = Kept()
    kept.fail(0, 4, error)
    assert len(kept.fleet.available) == 2
    kept.fail(0, 1, error)
    assert kept.fleet.available == [kept.fleet.upstreams[1]]
    kept.admission.check()


@pytest.mark.parametrize(
    "error",
    [Rejected("400", "user"), Rejected("401", "server"), Aborted("abort")],
    ids=["user", "operator", "abort"],
)
def test_refusals_and_aborts_are_signs_of_life(error: UpstreamError) -> None:
    kept = Kept()
    for _ in range(1000):
        kept.fail(0, 4, Unavailable("x"))
        kept.fail(0, 30, error)
    assert len(kept.fleet.available) == 2


def test_with_none_available_new_samples_are_refused_and_the_reason_names_all() -> None:
    kept = Kept()
    kept.fail(0, 5, Unavailable("x"))
    kept.fleet.drain(URLS[1], True)
    with pytest.raises(Overloaded) as raised:
        kept.admission.check()
    assert "h1" not in str(raised.value)
    (reason,) = kept.admission.reasons
    assert "h1:8001 fails samples" in reason
    assert "h2:443 is draining" in reason
    assert "secret" not in reason
    kept.fleet.drain(f"{URLS[1]}/", False)
    kept.admission.check()
    assert kept.admission.reasons == []


def test_an_unknown_upstream_cannot_be_drained() -> None:
    with pytest.raises(
        NotFound, match=r"^no upstream has this URL; configured are h1:8001, h2:443$"
    ):
        Kept().fleet.drain("http://h1:8001", True)


def half_open(kept: Kept) -> None:
    kept.fail(0, 5, Unavailable("x"))
    kept.tick(1.0)
    assert kept.fleet.upstreams[0].breaker.state == HALF_OPEN


def test_a_few_probes_and_then_none_until_one_has_answered() -> None:
    kept = Kept("http://h1:1")
    half_open(kept)
    (upstream,) = kept.fleet.available
    turns = [kept.fleet.probes(upstream, Told()) for _ in range(5)]
    assert kept.fleet.available == []
    assert kept.recoveries == 0
    kept.fleet.answered(upstream, turns[0], 1.1)
    assert kept.fleet.available == [upstream]
    assert kept.recoveries == 1
    assert upstream.breaker.state == CLOSED


def test_a_probe_that_survives_closes_it_once_it_was_sent() -> None:
    kept = Kept("http://h1:1")
    half_open(kept)
    (upstream,) = kept.fleet.upstreams
    probe = Told()
    kept.fleet.probes(upstream, probe)
    for now in range(2, 60):  # it is still connecting
        kept.tick(float(now))
    assert upstream.breaker.state == HALF_OPEN
    kept.sent.add(probe)
    kept.tick(60.0)
    kept.tick(61.9)
    assert upstream.breaker.state == HALF_OPEN
    kept.tick(62.0)
    assert upstream.breaker.state == CLOSED
    assert kept.recoveries == 1


def test_a_probe_that_fails_opens_it_again() -> None:
    kept = Kept("http://h1:1")
    half_open(kept)
    (upstream,) = kept.fleet.upstreams
    kept.fleet.probes(upstream, Told())
    kept.fail(0, 1, Unavailable("x"), 1.1)
    assert upstream.breaker.state == OPEN
    assert kept.recoveries == 0


def test_three_health_checks_eject_and_two_bring_back() -> None:
    kept = Kept()
    upstream = kept.fleet.upstreams[0]
    told = []
    for alive in (False, False, True, False, False, False, True, False, True, True):
        kept.fleet.checked(upstream, alive, 0.0)
        told.append(upstream.up)
    assert told == [True] * 5 + [False] * 4 + [True]
    assert upstream.state.up


def test_one_that_answers_samples_is_not_ejected() -> None:
    kept = Kept()
    upstream = kept.fleet.upstreams[0]
    for _ in range(20):
        kept.fleet.answered(upstream, 0, 0.0)
        kept.fleet.checked(upstream, False, 0.0)
    assert upstream.up


def test_one_that_is_back_by_its_checks_is_tried_at_once() -> None:
    kept = Kept("http://h1:1")
    (upstream,) = kept.fleet.upstreams
    kept.fail(0, 5, Unavailable("x", 50.0), 0.0)
    for alive in (False, False, False, True, True):
        kept.fleet.checked(upstream, alive, 1.0)
    kept.tick(1.1)
    assert kept.fleet.available == [upstream]


def test_hung_is_only_what_fails_its_checks_and_was_silent_with_samples() -> None:
    kept = Kept("http://h1:1")
    (upstream,) = kept.fleet.upstreams
    for now in range(1000):  # idle for long: silence begins with the first sample
        kept.tick(float(now))
    upstream.in_flight = 1
    assert list(kept.fleet.silent(1200.0, 120.0)) == []
    for _ in range(3):
        kept.fleet.checked(upstream, False, 1000.0)
    assert list(kept.fleet.silent(1118.0, 120.0)) == []
    assert list(kept.fleet.silent(1119.0, 120.0)) == [upstream]
    kept.fleet.answered(upstream, 0, 1119.0)
    kept.tick(1119.0)
    assert list(kept.fleet.silent(1238.0, 120.0)) == []


def test_what_this_machine_lacks_says_nothing_of_an_upstream() -> None:
    """Neither against it nor, while it is away, that it is back."""
    kept = Kept("http://h1", "http://h2")
    ours = Unavailable("no port is left", ours=True)
    kept.fail(0, 100, ours)
    assert [upstream.name for upstream in kept.fleet.available] == ["h1:80", "h2:80"]
    kept.fail(1, 5, Unavailable("refused"))
    kept.tick(2.0)
    upstream = kept.fleet.upstreams[1]
    assert upstream.breaker.state == HALF_OPEN
    kept.fail(1, 1, ours, now=2.0)
    assert upstream.breaker.state == HALF_OPEN


def test_whatever_brings_an_upstream_back_lets_those_go_that_waited_for_it() -> None:
    kept = Kept("http://h1")
    upstream = kept.fleet.upstreams[0]
    for now in (0.0, 5.0, 10.0):
        kept.fleet.checked(upstream, alive=False, now=now)
    assert not kept.fleet.available
    for now in (15.0, 20.0):
        assert kept.recoveries == 0
        kept.fleet.checked(upstream, alive=True, now=now)
    assert kept.recoveries == 1
    kept.fleet.drain("http://h1", True)
    assert kept.recoveries == 1
    kept.fleet.drain("http://h1", False)
    assert kept.recoveries == 2


def test_a_probe_that_connects_anew_proves_nothing_yet() -> None:
    kept = Kept("http://h1")
    upstream = kept.fleet.upstreams[0]
    kept.fail(0, 5, Unavailable("refused"))
    kept.tick(2.0)
    assert upstream.breaker.state == HALF_OPEN
    probe = Told()
    kept.fleet.probes(upstream, probe)
    kept.sent.add(probe)
    kept.tick(2.1)
    kept.sent.discard(probe)  # a stale connection: it is sent again, and the connect hangs
    kept.tick(3.0)
    kept.tick(5.0)
    assert upstream.breaker.state == HALF_OPEN
    kept.sent.add(probe)
    kept.tick(5.1)
    kept.tick(7.2)
    assert upstream.breaker.state == CLOSED
