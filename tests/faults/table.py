"""Every row: a fault, who injects it, and the bar that it is held to."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.faults import answers, several
from tests.faults.found import Row

ROWS: Final = (
    Row(
        "every-kind",
        "all 22 kinds of fault in one load",
        "each sample ends as the table of outcomes says",
        answers.every_kind,
        fast=True,
    ),
    Row(
        "reset-before",
        "upstream resets before the headers",
        "every client gets its result",
        partial(answers.single, "reset_before:0.2,close_before:0.1"),
    ),
    Row(
        "reset-body",
        "upstream resets in the body",
        "every client gets its whole result, never a short one",
        partial(answers.single, "reset_body:0.2,close_midway:0.1"),
    ),
    Row(
        "interrupted",
        "upstream aborts, leaves choices out, 502, plain 500",
        "answered 410, the client repeats, every sample succeeds",
        partial(answers.single, "abort:0.1,fewer_choices:0.1,502:0.1,plain_error:0.1"),
    ),
    Row(
        "error-500",
        "JSON 500",
        "run once more, every sample succeeds",
        partial(answers.single, "500:0.3"),
    ),
    Row(
        "refuse",
        "the listener is gone for half a second",
        "every sample waits and succeeds",
        partial(answers.single, "refuse=0.5:#30"),
    ),
    Row(
        "bad-answers",
        "200 with HTML, half a JSON, null, NaN, no logprobs",
        "failed, category server; nothing invented; an excerpt in the log",
        answers.bad_answers,
        fast=True,
    ),
    Row(
        "burst-503",
        "503 to everything for a second",
        "all succeed; the upstream's load meanwhile is at most 1.2 of the usual",
        partial(answers.burst, "503", 1.0),
    ),
    Row(
        "burst-502",
        "502 to everything for a second",
        "all succeed; the upstream's load meanwhile is at most 1.2 of the usual",
        partial(answers.burst, "502", 1.0),
    ),
    Row(
        "burst-500",
        "JSON 500 to everything for 0.8 s",
        "all succeed; the upstream's load meanwhile is at most 1.2 of the usual",
        partial(answers.burst, "500", 0.8),
    ),
    Row(
        "retry-after",
        "429 and 503 with Retry-After",
        "all succeed, none is sent before its time",
        answers.retry_after,
    ),
    Row(
        "paused",
        "503 with Retry-After to a sample that is polled",
        "its poll says paused_capacity, then it succeeds",
        answers.paused,
        fast=True,
    ),
    Row(
        "hang",
        "upstream accepts and says nothing",
        "slots freed by the read timeout, every sample succeeds",
        answers.hang,
    ),
    Row(
        "drip",
        "upstream answers slower than the work clock",
        "ended by the clock, connection closed, the others succeed",
        answers.drip_beyond_the_work_clock,
    ),
    Row(
        "one-down",
        "one of three upstreams never listens",
        "every sample succeeds on the others",
        several.one_down,
    ),
    Row(
        "one-killed",
        "one of three upstreams is killed under load",
        "every sample succeeds, none twice at once",
        several.one_killed,
        fast=True,
    ),
    Row(
        "one-hung",
        "one of three upstreams is stopped (SIGSTOP)",
        "after the health check's time nothing new waits for it",
        several.one_hung,
    ),
    Row(
        "one-slow",
        "one of three upstreams takes 40 times as long",
        "at most half of its share stands there",
        several.one_slow,
    ),
    Row(
        "all-down",
        "the only upstream is killed under load",
        "/readyz 503, /livez 200, accepted samples wait, nothing needs a restart",
        several.all_down,
    ),
    Row(
        "moved",
        "the upstream's name leads to another address",
        "resolved again, no client sees an error",
        several.moved,
    ),
)
