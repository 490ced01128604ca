"""CPU of gateways that share a store, against one that keeps samples in its own memory."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from loadgen.procfs import tree
from tests.bench.per_sample import (
    BATCHED_LEVEL,
    LOG_LEVEL,
    Load,
    Loaded,
    delays,
    loaded,
    samples_of,
)
from tests.bench.processes import Bench, cpu_s
from tests.bench.table import Figure, Row, Run
from tests.support.valkey import Valkey, valkey

Kind = Literal["sample", "batched"]

AGAINST_MEMORY: Final[dict[Kind, Figure]] = {
    "sample": Figure("shared-sample", "CPU a sample, shared store against memory", "us", 1.6),
    "batched": Figure("shared-batched", "the same, batched polls", "us", 1.6),
}
WORKERS: Final[dict[Kind, Figure]] = {
    "sample": Figure("workers-sample", "CPU a sample, 2 workers together against 1", "us", 1.15),
    "batched": Figure("workers-batched", "the same, batched polls", "us", 1.15),
}
SERVER: Final = Figure("shared-server", "CPU of the store's server a sample, single polls", "us")
LEVELS: Final[dict[Kind, int]] = {"sample": LOG_LEVEL, "batched": BATCHED_LEVEL}
PAIRS: Final = 5

FIGURES: Final = (*AGAINST_MEMORY.values(), *WORKERS.values(), SERVER)


def measure(bench: Bench, wanted: frozenset[str]) -> Iterator[Row]:
    with _server(bench) as server:
        for kind in LEVELS:
            load = Load(kind, LEVELS[kind], delays(bench, kind)(LEVELS[kind]))
            shared = load._replace(settings={"store.url": server.url})
            two = shared._replace(settings={"store.url": server.url, "server.workers": "2"})
            figure, served = AGAINST_MEMORY[kind], SERVER.name in wanted and kind == "sample"
            if figure.name in wanted or served:
                before = _spent(server)
                row, samples = _compared(bench, figure, load, shared)
                if figure.name in wanted:
                    yield row
                if served:
                    us = (_spent(server) - before) / samples * 1e6
                    yield SERVER.single(us, f"{LOG_LEVEL} in flight, its own threads too")
            figure = WORKERS[kind]
            if figure.name in wanted:
                yield _compared(bench, figure, shared, two)[0]


def _compared(bench: Bench, figure: Figure, floor: Load, other: Load) -> tuple[Row, int]:
    """Two gateways in turn; and how many samples the other one had."""
    samples, done = samples_of(bench, floor.in_flight), 0
    pairs: list[Run] = []
    with loaded(bench, floor) as one, loaded(bench, other) as two:
        for gateway in (one, two):
            _run(gateway, samples)
        done += samples
        for _ in range(max(bench.runs, PAIRS)):
            least = _run(one, samples)
            pairs.append((least, _run(two, samples)))
            done += samples
    return figure.paired(pairs, f"{floor.in_flight:,} in flight"), done


def _run(gateway: Loaded, samples: int) -> float:
    """Microseconds a sample, of all processes of a gateway."""
    pid = gateway.gateway.pid
    before = {each: cpu_s(each) for each in tree(pid)}
    seen = gateway.run(samples)
    others = sum(cpu_s(each) - spent for each, spent in before.items() if each != pid)
    return seen.us_a_sample + others / seen.samples * 1e6


@contextlib.contextmanager
def _server(bench: Bench) -> Iterator[Valkey]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-store-") as folder,
        valkey(Path(folder)) as server,
    ):
        if bench.client_core is not None:
            os.sched_setaffinity(server.process.pid, {bench.client_core})
        yield server


def _spent(server: Valkey) -> float:
    return cpu_s(server.process.pid)
