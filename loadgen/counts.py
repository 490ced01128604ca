"""What the stand-in was asked, counted."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from loadgen.faults import Fault

REQUEST_IDS_CAP: Final = 200_000
"""Enough for a full run of 131,072 samples with its retries."""


Hit = list[Any]
"""Arrivals, when first asked and when last answered, of the monotonic clock; 0.0 for never.

A list, because it is written twice per request: a class would cost more than the rest of it.
"""


class Counted(msgspec.Struct, frozen=True):
    """Counters of one process, or the sum over several, as `GET /counts` answers with.

    `held` wait at the barrier, `queued` for a slot; both are part of `running`. `running_max` of
    several processes is the sum of theirs, at most too high. `faults` are by name, `cpu_s` is user
    and system time. `forgotten` ids were dropped, the oldest first.
    """

    statuses: dict[int, int]
    faults: dict[str, int]
    running: int
    running_max: int
    held: int
    queued: int
    prompt_tokens: int
    generation_tokens: int
    aborted: int
    connections: int
    connections_total: int
    cpu_s: float
    processes: int = 1
    forgotten: int = 0


class Counts:
    """Counters since the start. Only completions count; the other routes would blur them.

    `running` is completions read and not yet answered, one per HTTP request whatever its `n`.
    """

    __slots__ = (
        "aborted",
        "connections",
        "connections_total",
        "faulted",
        "faults",
        "forgotten",
        "generation_tokens",
        "hits",
        "kept",
        "prompt_tokens",
        "running",
        "running_max",
        "sessions",
        "statuses",
    )

    def __init__(self, kept: int = REQUEST_IDS_CAP) -> None:
        """kept: so many ids at most, with their times and faults."""
        self.kept = kept
        self.forgotten = 0
        self.statuses: Counter[int] = Counter()
        self.faults: Counter[Fault] = Counter()
        self.faulted: OrderedDict[str, list[str]] = OrderedDict()
        self.running = 0
        self.running_max = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.aborted = 0
        self.connections = 0
        self.connections_total = 0
        self.hits: OrderedDict[str, Hit] = OrderedDict()
        # Different request ids by X-Session-ID.
        self.sessions: OrderedDict[str, int] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Counts running={self.running} answered={self.statuses.total()}>"

    @property
    def request_ids(self) -> dict[str, int]:
        """How often each id came."""
        return {name: hit[0] for name, hit in self.hits.items()}

    def saw(self, name: str, affinity: str | None = None) -> Hit:
        """Count one arrival under this id; whoever answers it sets the last time.

        affinity: its X-Session-ID, which is of one sample where a gateway spreads by samples.
        """
        hit = self.hits.get(name)
        if hit is not None:
            hit[0] += 1
            return hit
        self.hits[name] = hit = [1, time.monotonic(), 0.0]
        if len(self.hits) > self.kept:
            self.forgotten += 1
            self.hits.popitem(last=False)
        if affinity is not None:
            self.sessions[affinity] = self.sessions.get(affinity, 0) + 1
            if len(self.sessions) > self.kept:
                self.sessions.popitem(last=False)
        return hit

    def gave(self, fault: Fault, request_id: str) -> None:
        """Count a fault, and by the id which request met it."""
        self.faults[fault] += 1
        self.faulted.setdefault(request_id, []).append(fault.name)
        if len(self.faulted) > self.kept:
            self.faulted.popitem(last=False)

    def started(self) -> None:
        self.running += 1
        if self.running > self.running_max:
            self.running_max = self.running

    def counted(self, *, held: int, queued: int) -> Counted:
        """All but the ids, as they are now."""
        return Counted(
            statuses=dict(self.statuses),
            faults={fault.name: n for fault, n in self.faults.items()},
            running=self.running,
            running_max=self.running_max,
            held=held,
            queued=queued,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            aborted=self.aborted,
            connections=self.connections,
            connections_total=self.connections_total,
            cpu_s=time.process_time(),
            forgotten=self.forgotten,
        )


def merged(parts: Sequence[Counted]) -> Counted:
    """The sum of what several processes counted."""
    sums: dict[str, object] = {}
    for name in Counted.__struct_fields__:
        values = [getattr(part, name) for part in parts]
        sums[name] = added(values) if isinstance(values[0], dict) else sum(values)
    return msgspec.convert(sums, Counted)


def added(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Counts by key, summed."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def merged_hits(parts: Sequence[Mapping[str, Hit]]) -> dict[str, Hit]:
    """What several processes saw, by id."""
    total: dict[str, Hit] = {}
    for part in parts:
        for name, (count, asked, answered) in part.items():
            if (seen := total.get(name)) is None:
                total[name] = [count, asked, answered]
            else:
                total[name] = [seen[0] + count, min(seen[1], asked), max(seen[2], answered)]
    return total


def merged_faulted(parts: Sequence[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """The faults that several processes gave, by request id."""
    total: dict[str, list[str]] = {}
    for part in parts:
        for request_id, faults in part.items():
            total.setdefault(request_id, []).extend(faults)
    return total


def exposition(counted: Counted, model: str) -> str:
    """Prometheus text. `model` labels the series named as vLLM names them."""
    return "\n".join([*_lines(counted, model), ""])


def _lines(counted: Counted, model: str) -> Iterator[str]:
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    yield from _family(
        "loadgen_upstream_requests_total",
        "counter",
        "Completions answered.",
        {f'{{status="{status}"}}': n for status, n in sorted(counted.statuses.items())},
    )
    yield from _family(
        "loadgen_upstream_faults_total",
        "counter",
        "Faults given, on request or by the script.",
        {f'{{fault="{fault}"}}': n for fault, n in sorted(counted.faults.items())},
    )
    for name, kind, text, value in (
        ("running", "gauge", "Completions being worked on.", counted.running),
        ("running_max", "gauge", "Most completions at once since start.", counted.running_max),
        ("held", "gauge", "Completions waiting at the barrier.", counted.held),
        ("queued", "gauge", "Completions waiting for a slot.", counted.queued),
        ("prompt_tokens_total", "counter", "Prompt tokens answered.", counted.prompt_tokens),
        ("generation_tokens_total", "counter", "Tokens given out.", counted.generation_tokens),
        ("aborted_total", "counter", "Completions whose client left.", counted.aborted),
        ("connections", "gauge", "Connections open.", counted.connections),
        ("connections_total", "counter", "Connections accepted.", counted.connections_total),
        ("forgotten_total", "counter", "Request ids no longer kept.", counted.forgotten),
        ("processes", "gauge", "Processes that these figures are of.", counted.processes),
        ("cpu_seconds_total", "counter", "CPU time, user and system.", round(counted.cpu_s, 6)),
    ):
        yield from _family(f"loadgen_upstream_{name}", kind, text, {"": value})
    for name, value in (
        ("running", counted.running - counted.queued),
        ("waiting", counted.queued),
    ):
        labels = f'{{engine="0",model_name="{escaped}"}}'
        yield from _family(
            f"vllm:num_requests_{name}", "gauge", "As vLLM names it.", {labels: value}
        )


def _family(name: str, kind: str, text: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        yield f"{name}{labels} {value}"
