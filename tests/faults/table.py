"""Every row: a fault, who injects it, and the bar that it is held to."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.faults import answers, clients, hostile, keys, lives, machine, several, slow
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
        "one-deaf",
        "connects to one of three upstreams neither stand nor fail",
        "every sample succeeds on the others after the connect timeout",
        several.one_deaf,
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
    Row(
        "sigterm",
        "SIGTERM under load",
        "what runs is finished and delivered, exit 0 within the grace, the rest is repeated",
        lives.terminated,
    ),
    Row(
        "sigkill",
        "SIGKILL under load, restart on the same journal",
        "old ids answer 410, every sample succeeds, none twice in one life",
        lives.killed,
        fast=True,
    ),
    Row(
        "stall",
        "the event loop stands still for 1.3 s",
        "seen in the metrics, no poll is given up",
        lives.stalled,
    ),
    Row(
        "slow-loris",
        "heads and bodies that come a byte at a time",
        "closed by their deadlines; p99 of the healthy within 10%, or what it differs by without",
        slow.slow_loris,
    ),
    Row(
        "slow-readers",
        "large results that nobody reads",
        "256 KiB a connection, closed by the write deadline, the result is kept",
        clients.slow_readers,
    ),
    Row(
        "abandoned",
        "polls whose clients leave",
        "no waiter is left behind, memory is flat, every result is kept",
        clients.abandoned,
        fast=True,
    ),
    Row(
        "storm",
        "all open polls break off and come again at once",
        "none is answered before its time, health checks recover within a hold",
        clients.storm,
        fast=True,
    ),
    Row(
        "duplicates",
        "each submit five times",
        "one id, one request upstream; another body is 422",
        clients.duplicates,
        fast=True,
    ),
    Row(
        "sessions-end",
        "a session is finished, another falls silent",
        "upstream free within 2 s, ids answer 410, nothing is held",
        clients.sessions_end,
        fast=True,
    ),
    Row(
        "bodies",
        "malformed bodies to every route",
        "no 5xx, nothing sent upstream, memory bounded",
        hostile.bodies,
        fast=True,
    ),
    Row(
        "oversized",
        "bodies and heads that are too large",
        "413 before it is read, no head of megabytes, memory bounded",
        hostile.oversized,
    ),
    Row(
        "ambiguous",
        "framing that two parsers would read in two ways",
        "the request inside is never taken as one",
        hostile.ambiguous,
    ),
    Row(
        "paths",
        "model paths that lead to hosts, files and log lines",
        "4xx, the listener in the trap is never met, the log stays one line each",
        hostile.paths,
        fast=True,
    ),
    Row(
        "wrong-keys",
        "API keys are guessed",
        "the same 401 to all, no key in the log, the right one is served",
        keys.wrong_keys,
    ),
    Row(
        "keys-file",
        "the file of keys becomes unreadable",
        "the old keys stay, it is said, nothing is dropped",
        keys.broken_keys_file,
    ),
    Row(
        "descriptors",
        "no descriptor is left",
        "less than 20% of a core, recovers when some are",
        machine.descriptors_gone,
    ),
    Row(
        "ports",
        "no port to the upstream is left",
        "samples wait for one, no client sees an error",
        machine.ports_gone,
    ),
    Row(
        "memory",
        "a memory limit (cgroup) smaller than the results",
        "429 in time, never killed, what was accepted is answered",
        machine.memory_capped,
    ),
    Row(
        "disk-full",
        "the disk of sample log and journal is full",
        "lines dropped and counted, sampling goes on",
        machine.disk_full,
    ),
    Row(
        "clock",
        "the wall clock jumps by an hour, both ways",
        "nothing expires",
        machine.clock_jumps,
        fast=True,
    ),
)
