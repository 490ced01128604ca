"""What the store holds, as gauges."""

from asgi_gateway.metrics import Metrics
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
