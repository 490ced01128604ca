"""Fault scripts: what they say, and that a seed says it again."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from loadgen.faults import Fault
from loadgen.request import Job, Limits, check, read
from loadgen.script import Director, Injection, Rule, parse
from tests.loadgen.test_main import failure

LIMITS = Limits(("m",), 1_000, 151_936)


def job(number: int) -> Job:
    return check(read(b'{"prompt":[%d,7]}' % number, b"application/json"), LIMITS)


def test_rules_are_read_in_order() -> None:
    assert parse("reset_body:0.01, 503=2:10s-12s,hang:#3,drip=0.5:0.2@#10-#20,429:0.1@5s-") == (
        Rule(Injection(Fault.RESET_BODY), 0.01),
        Rule(Injection(Fault.UNAVAILABLE, 2.0), from_s=10.0, to_s=12.0),
        Rule(Injection(Fault.SILENT), first=3, last=3),
        Rule(Injection(Fault.DRIP, 0.5), 0.2, first=10, last=20),
        Rule(Injection(Fault.RATE_LIMITED), 0.1, from_s=5.0),
    )
    assert parse("") == ()


def test_every_fault_has_a_name_in_scripts() -> None:
    for fault in Fault:
        (rule,) = parse(f"{fault.name.lower()}:0.5")
        assert rule.injection.fault is fault


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("503", "KIND:WHEN"),
        ("404:0.1", "no fault '404'"),
        ("503:1.5", "at most 1"),
        ("503:0", "above 0"),
        ("503:x", "not a number"),
        ("503:12s-10s", "ends before"),
        ("503:#0", "count from 1"),
        ("503:#9-#3", "count from 1"),
        ("503:0.5@x", "no span"),
        ("503=-1:0.5", "zero or more"),
        ("html=3:0.5", "takes no value"),
        ("503:0.6,500:0.6", "1.2"),
        ("refuse:0.5@1s-2s", "takes no rate"),
        ("503:0.1,", "KIND:WHEN"),
    ],
)
def test_wrong_scripts_are_named(script: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse(script)


def test_the_command_line_says_what_is_wrong() -> None:
    message = failure("upstream", "--faults", "503:0.5,404:0.1")
    assert "--faults" in message
    assert "no fault '404'" in message
    assert "Traceback" not in message


def picked(script: str, jobs: list[Job], *, seed: int = 0, at_s: float = 0.0) -> list[Fault | None]:
    director = Director(parse(script), seed=seed)
    found = [director.pick(each, at_s) for each in jobs]
    return [None if injection is None else injection.fault for injection in found]


def test_rates_hold_and_do_not_take_from_each_other() -> None:
    counts = Counter(picked("html:0.1,500:0.2", [job(i) for i in range(6_000)]))
    assert counts[Fault.HTML] == pytest.approx(600, rel=0.12)
    assert counts[Fault.SERVER_ERROR] == pytest.approx(1_200, rel=0.12)


def test_a_seed_gives_the_same_faults_in_any_order() -> None:
    jobs = [job(i) for i in range(500)]
    once = dict(enumerate(picked("html:0.1,500:0.2", jobs)))
    backwards = picked("html:0.1,500:0.2", jobs[::-1])
    assert dict(enumerate(backwards[::-1])) == once
    assert dict(enumerate(picked("html:0.1,500:0.2", jobs, seed=1))) != once


def test_a_retry_draws_anew() -> None:
    found = picked("html:0.5", [job(1)] * 200)
    assert 60 < found.count(Fault.HTML) < 140


def test_spans_of_arrivals_and_of_time() -> None:
    jobs = [job(i) for i in range(6)]
    html = Fault.HTML
    assert picked("html:#2-#3", jobs) == [None, html, html, None, None, None]
    assert picked("html:#6", jobs) == [None] * 5 + [html]
    director = Director(parse("html:1s-2s"))
    seen = [director.pick(job(1), at) for at in (0.0, 0.99, 1.0, 1.99, 2.0)]
    assert [found is not None for found in seen] == [False, False, True, True, False]


def test_a_span_without_a_listener_is_no_fault_of_a_completion() -> None:
    director = Director(parse("refuse:1s-2s,refuse:5s-"))
    assert director.shut_spans == ((1.0, 2.0), (5.0, math.inf))
    assert director.pick(job(1), 1.5) is None
