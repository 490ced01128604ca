"""The final table of a run, for a terminal and as markdown beside the public figures."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from loadgen.outcomes import Traffic
from loadgen.report.figures import TooFew, figure, histograms, kind_of, traffic_of
from loadgen.report.text import ABSENT, count, duration, plain, rate, share, size, words
from loadgen.results import Result


@dataclass(frozen=True, slots=True)
class Public:
    """A run of the public server as its authors published it (SkyRL pull requests 2160 to 2166).

    16 vCPUs, one server process. answered: how their upstream did, "" where it does not matter.
    """

    load: str
    samples_per_s: float
    samples: int
    output_tokens: int
    answered: str = ""
    more: str = ""


SHORT: Final = 64
"""Outputs up to so many tokens are called short here; the record does not give theirs."""

QUEUED: Final = "2048 at a time, 5 s each"

PUBLIC: Final = (
    Public("2,048 short", 17, 2_048, SHORT, more="httpx and FastAPI, before their fixes"),
    Public(
        "131,072 short, barrier",
        568,
        131_072,
        SHORT,
        answered="barrier",
        more="1.2 GB, healthz p99 0.8 s",
    ),
    Public(
        "131,072 short, 2,048 of 5 s at a time",
        306,
        131_072,
        SHORT,
        answered=QUEUED,
        more="224,000 abandoned polls, 889 reconnects, 4.9 GB, healthz p99 9 s",
    ),
    Public("512 of 32k tokens", 167, 512, 32_768),
    Public("131,072 of 8k tokens", 267, 131_072, 8_192, more="8.9 GB, 3,236 reconnects"),
)


def sections(result: Result) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Headings with lines of label and value: what a person wants to know, in that order."""
    plan = result.plan
    outcomes, doubled, traffic = result.outcomes, result.doubled, traffic_of(result)
    yield (
        "Run",
        [
            ("scenario", f"{plan.scenario}: {count(plan.samples)} samples, polls: {plan.style}"),
            ("arrivals", arrivals(result)),
            ("took", duration(result.seconds * 1e3)),
            ("samples/s", rate(result.samples_per_s)),
            ("output tokens/s", rate(result.output_tokens_per_s)),
        ],
    )
    yield (
        "Outcomes",
        [
            ("succeeded", count(outcomes.succeeded)),
            ("failed", with_words(outcomes.failed)),
            ("refused", with_words(outcomes.refused)),
            ("wrong", with_words(outcomes.wrong)),
            ("lost", count(outcomes.lost)),
            ("doubled", count(doubled.total)),
            *([("polls and retries", ABSENT)] if traffic is None else _sent(traffic)),
        ],
    )
    server = result.server
    if server is not None:
        yield (
            "Server",
            [
                ("CPU a sample", duration(server.cpu_ms_per_sample)),
                ("busiest process", f"{share(server.busy)} of a core"),
                ("memory at most", size(server.rss_peak)),
                ("memory a sample", size(server.bytes_per_sample)),
                ("descriptors at most", count(server.descriptors_peak)),
                ("loop lag p99", duration(server.lag_p99_ms)),
                ("loop lag max", duration(server.lag_max_ms)),
                ("healthz p99", healthz(result)),
            ],
        )
    if result.upstream is not None and result.upstream.ceiling_per_s is not None:
        ceiling = rate(result.upstream.ceiling_per_s)
        yield "Stand-in", [("could answer", f"{ceiling} a second on cores of its own")]
    if result.faults:
        yield (
            "Faults",
            [(f.kind, f"{count(f.injected)} injected: {words(f.seen)}") for f in result.faults],
        )
    client = result.client
    yield (
        "Client",
        [
            ("CPU a sample", duration(client.cpu_ms_per_sample)),
            ("busiest process", f"{share(max(client.cpu, default=None))} of a core"),
            ("loop lag p99", duration(max(client.lag_p99_ms, default=None))),
            ("late starts", count(client.late)),
        ],
    )


def arrivals(result: Result) -> str:
    plan = result.plan
    if plan.barrier:
        held = f", held {duration(plan.hold_s * 1e3)}" if plan.hold_s else ""
        return f"all in flight before the first is answered{held}"
    if plan.arrivals != "closed":
        return f"{plan.arrivals}, {rate(plan.rate)} a second"
    return f"{count(plan.concurrency)} at a time" if plan.concurrency else "all at once"


def with_words(parts: dict[str, int]) -> str:
    total = sum(parts.values())
    return f"{total:,} ({words(parts)})" if total else "0"


def healthz(result: Result) -> str:
    """Its p99; of too few probes for one their maximum, which is no less."""
    try:
        return duration(figure(result, "healthz.p99"))
    except TooFew:
        probes = figure(result, "healthz.count")
        return f"at most {duration(figure(result, 'healthz.max'))} ({count(probes)} probes)"


LATENCY_COLUMNS: Final = ("p50", "p90", "p99", "p99.9", "p99.99")


def latencies(result: Result) -> Iterator[tuple[str, list[str]]]:
    """A row per stage: name, then percentiles, maximum and count. A dash is too few samples."""
    for name, histogram in histograms(result):
        values = [histogram.percentiles.get(column) for column in LATENCY_COLUMNS]
        cells = ["-" if value is None else duration(value) for value in values]
        longest = duration(histogram.max_ms) if histogram.count else "-"
        yield name, [*cells, longest, count(histogram.count)]


def verdict(result: Result) -> str:
    """One sentence: valid, thresholds, ledger."""
    found = result.verdict
    if not found.valid:
        return f"INVALID: the server was not the limit ({'; '.join(found.reasons)})"
    missed = [threshold for threshold in found.thresholds if not threshold.ok]
    parts = []
    if missed:
        parts.append(f"{len(missed)} of {len(found.thresholds)} thresholds missed")
    if not found.clean:
        parts.append(f"the ledger is not clean ({'; '.join(found.problems)})")
    if parts:
        return f"FAILED: {', '.join(parts)}"
    met = len(found.thresholds)
    return f"OK: valid, ledger clean{f', {met} thresholds met' if met else ''}"


def lines(result: Result) -> Iterator[str]:
    """The final table as plain text of at most 100 columns a line where names are sane."""
    for heading, rows in sections(result):
        yield ""
        yield heading
        for label, value in rows:
            yield f"  {label:<20}{value}"
    yield ""
    header = ["Latency", *LATENCY_COLUMNS, "max", "count"]
    yield from aligned([header, *([name, *cells] for name, cells in latencies(result))])
    for threshold in result.verdict.thresholds:
        name = name_in(threshold.expression)
        value = plain(name, kind_of(name).unit, threshold.value)
        mark = "met   " if threshold.ok else "MISSED"
        yield f"{mark}  {threshold.expression}  ({value})"
    yield from (f"note: {note}" for note in result.notes)
    yield verdict(result)


def name_in(expression: str) -> str:
    """The figure that a threshold is about."""
    return re.split(r"[<>=!]", expression)[0].strip()


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """First column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


MARKDOWN_COLUMNS: Final = (
    "load",
    "samples/s",
    "public server",
    "failed / lost / doubled",
    "abandoned polls",
    "memory",
    "healthz p99",
    "server CPU a sample",
)


def markdown(results: Iterable[Result]) -> Iterator[str]:
    """A row per result beside the public figure of the same load, where there is one."""
    yield f"| {' | '.join(MARKDOWN_COLUMNS)} |"
    yield f"|{' --- |' * len(MARKDOWN_COLUMNS)}"
    for result in results:
        outcomes = result.outcomes
        bad = sum(
            sum(part.values()) for part in (outcomes.failed, outcomes.refused, outcomes.wrong)
        )
        public = public_of(result)
        theirs = "none published" if public is None else published(public)
        server = result.server
        cells = (
            f"{count(result.plan.samples)} of {tokens(result)} tokens, {arrivals(result)}"
            + ("" if result.verdict.valid else " (INVALID RUN)"),
            rate(result.samples_per_s),
            theirs,
            f"{bad:,} / {outcomes.lost:,} / {result.doubled.total:,}",
            count(figure(result, "abandoned")),
            size(server.rss_peak if server else None),
            healthz(result),
            duration(server.cpu_ms_per_sample if server else None),
        )
        yield f"| {' | '.join(escaped(cell) for cell in cells)} |"


def _sent(traffic: Traffic) -> list[tuple[str, str]]:
    return [
        ("polls", f"{count(traffic.polls)}, {count(traffic.polls_overdue)} overdue"),
        ("abandoned polls", count(traffic.polls_abandoned)),
        ("retries", with_words(traffic.retries)),
        ("reconnects", count(traffic.reconnects)),
    ]


def published(public: Public) -> str:
    more = f"; {public.more}" if public.more else ""
    return f"{rate(public.samples_per_s)} ({public.load}{more})"


def escaped(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def tokens(result: Result) -> str:
    length = result.plan.output_tokens
    if length.low == length.high:
        return count(length.low)
    return f"{count(length.low)} to {count(length.high)}"


def public_of(result: Result) -> Public | None:
    """The published run of as many samples, as long, answered in the same way."""
    plan = result.plan
    how = answered(result)
    low, high = plan.output_tokens.low, plan.output_tokens.high
    for public in PUBLIC:
        exact = low == high == public.output_tokens
        alike = high <= SHORT if public.output_tokens == SHORT else exact
        if public.samples == plan.samples and alike and public.answered in ("", how):
            return public
    return None


def answered(result: Result) -> str:
    """How the stand-in answered, from the flags that it was started with; "" where unknown."""
    if result.plan.barrier:
        return "barrier"
    flags = shlex.split(result.upstream.mode or "") if result.upstream else []
    values = dict(itertools.pairwise(flags))
    seconds = values.get("--gen-seconds", values.get("--delay-s"))
    slots = values.get("--max-num-seqs")
    return f"{slots} at a time, {float(seconds):g} s each" if seconds and slots else ""
