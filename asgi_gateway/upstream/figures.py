"""What the metrics show of each upstream."""

from collections.abc import Callable, Sequence

from asgi_gateway.metrics import Labelled, Metrics
from asgi_gateway.upstream.standing import Upstream


def add_to(metrics: Metrics, upstreams: Callable[[], Sequence[Upstream]]) -> None:
    """upstreams: those that there are when scraped."""

    def each(read: Callable[[Upstream], float]) -> Callable[[], Labelled]:
        return lambda: [((upstream.name,), read(upstream)) for upstream in upstreams()]

    for name, kind, text, read in (
        ("upstream_inflight", "gauge", "Samples there now.", each(lambda u: u.in_flight)),
        (
            "upstream_up",
            "gauge",
            "1 while the upstream's health checks pass.",
            each(lambda u: int(u.up)),
        ),
        (
            "upstream_draining",
            "gauge",
            "1 while the upstream is given no new samples: it is drained, or configured no more.",
            each(lambda u: int(u.draining or u.leaving)),
        ),
        (
            "breaker_state",
            "gauge",
            "The upstream's circuit breaker: 0 closed, 1 half open, 2 open.",
            each(lambda u: u.breaker.state),
        ),
        (
            "breaker_opened_total",
            "counter",
            "Times that the upstream's circuit breaker opened.",
            each(lambda u: u.breaker.opened),
        ),
    ):
        metrics.labelled(name, kind, text, ("upstream",), read)
    metrics.labelled(
        "upstream_requests_total",
        "counter",
        "Requests to the upstream that are over, by what came of them.",
        ("upstream", "code"),
        lambda: [
            ((upstream.name, code), count)
            for upstream in upstreams()
            for code, count in upstream.requests.shown()
        ],
    )
