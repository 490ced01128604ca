"""What the parts hold, as gauges."""

import platform
from importlib.metadata import version
from typing import Final

from asgi_gateway import procfs
from asgi_gateway.access.door import Door
from asgi_gateway.drain import Drain
from asgi_gateway.keeper import Keeper
from asgi_gateway.metrics import Metrics
from asgi_gateway.outputs import Outputs
from asgi_gateway.pauses import GcPauses, LoopLag
from asgi_gateway.sessions import Sessions
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.states import QUEUED, RUNNING, Event

VERSION: Final = version("asgi-gateway")


def of_store(metrics: Metrics, store: MemoryStore) -> None:
    counts = store.counts
    for name, text, read in (
        ("samples_inflight", "Samples accepted and not settled.", lambda: store.in_flight),
        (
            "samples_inflight_limit",
            "At so many submits are refused, store.max_in_flight.",
            lambda: store.budget.max_in_flight,
        ),
        (
            "samples_queued",
            "Samples in line for an upstream: for a connection, for bytes, or to be tried again.",
            lambda: counts[QUEUED],
        ),
        ("samples_running", "Samples at an upstream.", lambda: counts[RUNNING]),
        (
            "samples_undelivered",
            "Samples settled whose outcome no client was seen to get yet.",
            lambda: store.undelivered,
        ),
        ("samples_held", "Samples held in any state.", lambda: len(store)),
        (
            "samples_lost",
            "Samples that are gone and whose clients were not told yet: their next poll is.",
            lambda: store.targets.lost,
        ),
        ("polls_inflight", "Polls parked, batched ones included.", lambda: store.parked),
        ("results_held_bytes", "Bytes of results held.", lambda: store.results_bytes),
        (
            "charged_bytes",
            "Bytes of prompts, results and room for answers, as counted against store.max_bytes.",
            lambda: store.charged_bytes,
        ),
        (
            "charged_bytes_limit",
            "At so many submits are refused, store.max_bytes.",
            lambda: store.budget.max_bytes,
        ),
    ):
        metrics.gauge(name, text, read)
    names = [event.name.lower() for event in Event]
    metrics.labelled(
        "late_events_total",
        "counter",
        "Lost races, by what came too late for its sample: succeed is a result after its sample was"
        " cancelled, failed or handed back.",
        ("event",),
        lambda: [((name,), n) for name, n in zip(names, store.late_events, strict=True)],
    )


def of_process(
    metrics: Metrics, lag: LoopLag, pauses: GcPauses, drain: Drain, outputs: Outputs
) -> None:
    metrics.labelled(
        "build_info",
        "gauge",
        "1; which version of the gateway runs on which Python.",
        ("version", "python"),
        lambda: [((VERSION, platform.python_version()), 1)],
    )
    procfs.add_to(metrics)
    lag.add_to(metrics)
    pauses.add_to(metrics)
    drain.add_to(metrics)
    outputs.add_to(metrics)


def of_identity(
    metrics: Metrics, sessions: Sessions, keeper: Keeper | None, door: Door | None
) -> None:
    metrics.gauge("sessions", "Sessions of clients that are kept.", lambda: len(sessions))
    if keeper is not None:
        keeper.add_to(metrics)
    if door is not None:
        door.add_to(metrics)
