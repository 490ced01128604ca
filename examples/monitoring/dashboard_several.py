"""The row on gateways that share a store, and on the workers of one port."""

from typing import Final

from dashboard_panels import EACH, Panel, of, rate

ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Several gateways": (
        Panel(
            "Shared store",
            "1 while it answers. Where store.url is set.",
            ((of("store_up"), EACH),),
        ),
        Panel(
            "Not in the shared store yet",
            "Outcomes that it does not have; commands that it has not answered.",
            (
                (of("store_unwritten"), f"outcomes {EACH}"),
                (of("store_waiting"), f"commands {EACH}"),
            ),
        ),
        Panel(
            "Gateways taken for dead",
            "By who found another one dead, and by who was taken for dead and is not.",
            (
                (f"increase({of('store_buried_total')}[$__rate_interval])", f"found {EACH}"),
                (f"increase({of('store_fenced_total')}[$__rate_interval])", f"fenced {EACH}"),
            ),
        ),
        Panel(
            "Samples of the dead, outcomes too late",
            "Taken over, with store.adopt; and outcomes of samples that ended elsewhere.",
            (
                (rate("store_adopted_total", "instance"), f"taken over {EACH}"),
                (rate("store_late_total", "instance"), f"too late {EACH}"),
            ),
            unit="cps",
        ),
        Panel(
            "Workers",
            "Processes on one port that answer each other. Where server.workers is above 1.",
            (
                (of("workers_answered"), f"answered {EACH}"),
                (of("workers"), f"wanted {EACH}"),
            ),
        ),
        Panel(
            "Workers that died",
            "And were replaced; the supervisor's log has the signal.",
            ((f"increase({of('worker_deaths_total')}[$__rate_interval])", EACH),),
        ),
    ),
}
