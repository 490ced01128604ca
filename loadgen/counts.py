"""What the stand-in was asked, counted."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Final

from loadgen.faults import Fault

REQUEST_IDS_CAP: Final = 200_000
"""Enough for a full run of 131,072 samples with its retries."""


class Counts:
    """Counters since the start. Only completions count; the other routes would blur them.

    `running` is completions read and not yet answered, one per HTTP request whatever its `n`.
    """

    __slots__ = (
        "aborted",
        "connections",
        "connections_total",
        "faults",
        "generation_tokens",
        "prompt_tokens",
        "request_ids",
        "running",
        "running_max",
        "statuses",
    )

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.faults: Counter[Fault] = Counter()
        self.running = 0
        self.running_max = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.aborted = 0
        self.connections = 0
        self.connections_total = 0
        self.request_ids: OrderedDict[str, int] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Counts running={self.running} answered={self.statuses.total()}>"

    def saw(self, request_id: str) -> None:
        """Count one arrival under this X-Request-Id."""
        ids = self.request_ids
        ids[request_id] = ids.get(request_id, 0) + 1
        if len(ids) > REQUEST_IDS_CAP:
            ids.popitem(last=False)

    def started(self) -> None:
        self.running += 1
        if self.running > self.running_max:
            self.running_max = self.running

    def exposition(self, model: str) -> str:
        """Prometheus text. `model` labels the one series named as vLLM names it."""
        return "\n".join([*self._lines(model), ""])

    def _lines(self, model: str) -> Iterator[str]:
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield from _family(
            "loadgen_upstream_requests_total",
            "counter",
            "Completions answered.",
            {f'{{status="{status}"}}': n for status, n in sorted(self.statuses.items())},
        )
        yield from _family(
            "loadgen_upstream_faults_total",
            "counter",
            "Faults given on request.",
            {f'{{fault="{fault.name}"}}': n for fault, n in sorted(self.faults.items())},
        )
        for name, kind, text, value in (
            ("running", "gauge", "Completions being worked on.", self.running),
            ("running_max", "gauge", "Most completions at once since start.", self.running_max),
            ("prompt_tokens_total", "counter", "Prompt tokens answered.", self.prompt_tokens),
            ("generation_tokens_total", "counter", "Tokens given out.", self.generation_tokens),
            ("aborted_total", "counter", "Completions whose client left.", self.aborted),
            ("connections", "gauge", "Connections open.", self.connections),
            ("connections_total", "counter", "Connections accepted.", self.connections_total),
        ):
            yield from _family(f"loadgen_upstream_{name}", kind, text, {"": value})
        yield from _family(
            "vllm:num_requests_running",
            "gauge",
            "As vLLM names it.",
            {f'{{engine="0",model_name="{escaped}"}}': self.running},
        )


def _family(name: str, kind: str, text: str, values: dict[str, int]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        yield f"{name}{labels} {value}"
