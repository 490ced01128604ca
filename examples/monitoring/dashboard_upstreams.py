"""The row on upstreams."""

from typing import Final

from dashboard_panels import EACH, Panel, of, rate

ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Upstreams": (
        Panel(
            "Samples there",
            "",
            ((f"sum by (upstream) ({of('upstream_inflight')})", "{{upstream}}"),),
            stacked=True,
        ),
        Panel(
            "Of the connections allowed",
            "At upstream.max_connections samples wait in line.",
            (
                (f"sum by (instance) ({of('upstream_inflight')})", EACH),
                (of("upstream_requests_limit"), f"limit {EACH}"),
            ),
        ),
        Panel(
            "Requests by upstream",
            "Over, a second.",
            ((rate("upstream_requests_total", "upstream"), "{{upstream}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Requests that gave no result",
            "By upstream and what came of them.",
            (
                (
                    rate("upstream_requests_total", "upstream, code", 'code!="ok"'),
                    "{{upstream}} {{code}}",
                ),
            ),
            unit="cps",
        ),
        Panel(
            "Breaker",
            "0 closed, 1 half open, 2 open.",
            ((of("breaker_state"), "{{upstream}} " + EACH),),
        ),
        Panel(
            "Healthy, draining",
            "1 while its health checks pass; 1 while it is drained.",
            (
                (of("upstream_up"), "{{upstream}} up " + EACH),
                (of("upstream_draining"), "{{upstream}} draining " + EACH),
            ),
        ),
        Panel(
            "Breakers opened",
            "",
            ((rate("breaker_opened_total", "upstream"), "{{upstream}}"),),
            unit="cps",
        ),
        Panel(
            "Held back, handed back",
            "Tries that waited for upstream.retry_budget; samples of hung upstreams.",
            (
                (rate("retries_delayed_total", "instance"), f"delayed {EACH}"),
                (rate("upstream_hung_total", "instance"), f"hung {EACH}"),
            ),
            unit="cps",
        ),
    ),
}
