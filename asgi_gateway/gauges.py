"""What the parts hold, as gauges."""

from asgi_gateway import procfs
from asgi_gateway.access.door import Door
from asgi_gateway.drain import Drain
from asgi_gateway.keeper import Keeper
from asgi_gateway.metrics import Metrics
from asgi_gateway.outputs import Outputs
from asgi_gateway.pauses import GcPauses, LoopLag
from asgi_gateway.sessions import Sessions
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.states import State


def of_store(metrics: Metrics, store: MemoryStore) -> None:
    counts = store.counts
    for name, text, read in (
        ("samples_inflight", "Samples accepted and not settled.", lambda: store.in_flight),
        (
            "samples_queued",
            "Samples waiting for an upstream connection.",
            lambda: counts[State.QUEUED],
        ),
        ("samples_running", "Samples at the upstream.", lambda: counts[State.RUNNING]),
        ("samples_undelivered", "Settled, not delivered yet.", lambda: store.undelivered),
        ("samples_held", "Samples held in any state.", lambda: len(store)),
        ("polls_inflight", "Polls parked.", lambda: store.parked),
        ("results_held_bytes", "Bytes of results held.", lambda: store.results_bytes),
        ("charged_bytes", "Bytes counted against store.max_bytes.", lambda: store.charged_bytes),
        ("samples_lost", "Lost, and not told to their clients.", lambda: store.targets.lost),
        ("late_events", "Lost races, such as a result after a cancel.", lambda: store.late_events),
    ):
        metrics.gauge(name, text, read)


def of_process(
    metrics: Metrics, lag: LoopLag, pauses: GcPauses, drain: Drain, outputs: Outputs
) -> None:
    procfs.add_to(metrics)
    lag.add_to(metrics)
    pauses.add_to(metrics)
    drain.add_to(metrics)
    outputs.add_to(metrics)


def of_identity(
    metrics: Metrics, sessions: Sessions, keeper: Keeper | None, door: Door | None
) -> None:
    metrics.gauge("sessions", "Sessions known.", lambda: len(sessions))
    if keeper is not None:
        keeper.add_to(metrics)
    if door is not None:
        door.add_to(metrics)
