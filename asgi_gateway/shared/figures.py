"""Metrics of a gateway that shares its store."""

from asgi_gateway.metrics import Metrics
from asgi_gateway.shared.whole import Shared


def add_to(metrics: Metrics, shared: Shared) -> None:
    text = "1 while the shared store answers."
    metrics.gauge("store_up", text, lambda: int(shared.link.up))
    text = "Commands of the shared store without a reply."
    metrics.gauge("store_waiting", text, lambda: shared.link.waiting)
    text = "Outcomes, and samples taken in without it, that the shared store does not have yet."
    metrics.gauge("store_unwritten", text, shared.store.awaited)
    text = "Outcomes that came too late: cancelled elsewhere, or this gateway was fenced."
    metrics.counter("store_late_total", text, lambda: shared.store.outbox.late)
    text = "Gateways found dead, whose samples this one gave back."
    metrics.counter("store_buried_total", text, lambda: shared.member.buried_count)
    text = "Samples of dead gateways that this one took over."
    metrics.counter("store_adopted_total", text, lambda: shared.member.adopted_count)
    text = "Times that this gateway was taken for dead."
    metrics.counter("store_fenced_total", text, lambda: shared.member.fenced_count)
