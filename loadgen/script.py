"""Faults by rate or by schedule.

A script is a comma-separated list of `KIND[=VALUE]:WHEN`; of the rules that apply to a completion
the first one drawn wins. KIND is a fault's name in lower case, or one of the short names below.

| WHEN | meaning |
|---|---|
| `0.01` | one completion in a hundred |
| `10s-12s` | all that arrive from 10 to 12 s after the first one; `10s-` is without end |
| `#100-#199` | the 100th to the 199th to arrive, counted from 1; `#100` is that one alone |
| `0.5@10s-12s`, `0.5@#100-#199` | so many of those |

| KIND | VALUE |
|---|---|
| `429`, `500`, `502`, `503` | seconds of a Retry-After header, none without a value |
| `drip` | seconds that the body takes (10) |
| `refuse` | seconds without a listener (1); with a span in seconds it is gone for that time |
| the others | none |

What is drawn follows from the seed, the prompt, its seed and how often it was seen: the same
requests meet the same faults in every run, in whatever order they arrive, and a retry draws anew.
Spans in seconds follow the clock, and those in arrivals their order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from loadgen.faults import CANNED, DRIP_S, REFUSE_S, Fault
from loadgen.lengths import unit
from loadgen.request import Job

SHORT: Final = {
    "429": Fault.RATE_LIMITED,
    "500": Fault.SERVER_ERROR,
    "502": Fault.BAD_GATEWAY,
    "503": Fault.UNAVAILABLE,
    "hang": Fault.SILENT,
    "null": Fault.NULL_LOGPROB,
    "nan": Fault.NAN_VALUE,
    "abort": Fault.ABORTED,
    "fewer_choices": Fault.CHOICE_MISSING,
}
KINDS: Final = {fault.name.lower(): fault for fault in Fault} | SHORT

_NAMES: Final = {fault: name for name, fault in SHORT.items()}

_DEFAULTS: Final = {Fault.DRIP: DRIP_S, Fault.REFUSE: REFUSE_S}
_SPAN: Final = re.compile(
    r"(?P<from_s>\d+(?:\.\d+)?)s-(?:(?P<to_s>\d+(?:\.\d+)?)s)?|#(?P<first>\d+)(?:-#(?P<last>\d+))?"
)


def name_of(fault: Fault) -> str:
    """As scripts and reports call it."""
    return _NAMES.get(fault, fault.name.lower())


class Injection(NamedTuple):
    """One fault for one completion. `value` as in the table, None where the kind has none."""

    fault: Fault
    value: float | None = None

    @property
    def retry_after(self) -> tuple[tuple[str, str], ...]:
        """The headers that a status with this value carries."""
        return () if self.value is None else (("retry-after", f"{self.value:g}"),)


class Rule(NamedTuple):
    """When a fault is given: bounds of time in seconds, of arrivals counted from 1, inclusive."""

    injection: Injection
    rate: float = 1.0
    from_s: float = 0.0
    to_s: float = math.inf
    first: int = 1
    last: float = math.inf

    def applies(self, elapsed_s: float, number: int) -> bool:
        return self.from_s <= elapsed_s < self.to_s and self.first <= number <= self.last

    @property
    def timed(self) -> bool:
        return self.from_s > 0 or self.to_s < math.inf

    @property
    def always(self) -> bool:
        return not self.timed and self.first == 1 and self.last == math.inf


def parse(script: str) -> tuple[Rule, ...]:
    """The rules in order; ValueError names the item that is wrong, and why."""
    rules = tuple(_rule(item.strip()) for item in script.split(",")) if script.strip() else ()
    share = sum(rule.rate for rule in rules if rule.always)
    if share > 1:
        raise ValueError(f"the rates add up to {share:g}, above 1")
    return rules


def _rule(item: str) -> Rule:
    named, colon, when = item.partition(":")
    if not colon:
        raise ValueError(f"{item!r}: not KIND:WHEN, such as 503:0.01 or 503:10s-12s")
    kind, equals, text = named.partition("=")
    fault = KINDS.get(kind)
    if fault is None:
        raise ValueError(f"{item!r}: no fault {kind!r}: one of {', '.join(sorted(KINDS))}")
    value = _DEFAULTS.get(fault)
    if equals:
        if fault not in _DEFAULTS and not (fault in CANNED and CANNED[fault].status in _RETRIED):
            raise ValueError(f"{item!r}: {kind} takes no value")
        value = _number(item, text)
    rule = _when(item, Injection(fault, value), when)
    if fault is Fault.REFUSE and rule.timed and rule.rate < 1:
        raise ValueError(f"{item!r}: a span in seconds without a listener takes no rate")
    return rule


_RETRIED: Final = (429, 500, 502, 503)


def _when(item: str, injection: Injection, when: str) -> Rule:
    before, at, span = when.rpartition("@")
    rate = 1.0
    if at or not (found := _SPAN.fullmatch(span)):
        rate = _number(item, before if at else when)
        if not 0 < rate <= 1:
            raise ValueError(f"{item!r}: a rate is above 0 and at most 1, got {rate:g}")
        if not at:
            return Rule(injection, rate)
        found = _SPAN.fullmatch(span)
    if found is None:
        raise ValueError(f"{item!r}: no span {span!r}: 10s-12s, 10s-, #100-#199 or #100")
    if found["first"] is not None:
        first = int(found["first"])
        last = first if found["last"] is None else int(found["last"])
        if not 1 <= first <= last:
            raise ValueError(f"{item!r}: arrivals count from 1 and upwards")
        return Rule(injection, rate, first=first, last=last)
    from_s = float(found["from_s"])
    to_s = math.inf if found["to_s"] is None else float(found["to_s"])
    if to_s <= from_s:
        raise ValueError(f"{item!r}: ends before it begins")
    return Rule(injection, rate, from_s=from_s, to_s=to_s)


def _number(item: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{item!r}: not a number: {text!r}") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{item!r}: must be zero or more, got {text}")
    return value


class Director:
    """Says which completion gets which fault."""

    def __init__(self, rules: Sequence[Rule], *, seed: int = 0) -> None:
        self._rules = tuple(rule for rule in rules if rule not in _shut(rules))
        self.shut_spans = tuple((rule.from_s, rule.to_s) for rule in _shut(rules))
        """Seconds after the first completion between which nobody listens."""
        self._seed = seed
        self._drawn = any(rule.rate < 1 for rule in self._rules)
        self._seen: dict[bytes, int] = {}
        self._arrived = 0

    def __repr__(self) -> str:
        return f"<Director {len(self._rules)} rules, {self._arrived} arrived>"

    def pick(self, job: Job, elapsed_s: float) -> Injection | None:
        """The fault of the completion that arrives now, `elapsed_s` after the first one."""
        self._arrived += 1
        rules = [rule for rule in self._rules if rule.applies(elapsed_s, self._arrived)]
        left = self._draw(job) if self._drawn else 0.0
        for rule in rules:
            if left < rule.rate:
                return rule.injection
            left -= rule.rate
        return None

    def _draw(self, job: Job) -> float:
        """In [0, 1). Rules take adjacent parts of it, so that each has its own rate."""
        key = msgspec.json.encode((job.prompts, job.asked.seed))
        short = unit(self._seed, key).hex().encode()
        times = self._seen.get(short, 0)
        self._seen[short] = times + 1
        return unit(self._seed, b"fault", short, b"%d" % times)


def _shut(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if rule.injection.fault is Fault.REFUSE and rule.timed)
