"""Rows on samples: now, their traffic, how long they take and where they are."""

from typing import Final

from dashboard_panels import EACH, MINE, Panel, of, quantiles, rate

SETTLED: Final = f"sum(rate({of('samples_total')}[$__rate_interval]))"
FAILED: Final = SETTLED.replace(MINE, f'{MINE},outcome="failed"')
STAGE_S: Final = rate("stage_seconds_sum", "stage")
STAGES: Final = rate("stage_seconds_count", "stage")

ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Now": (
        Panel(
            "Ready",
            "1 where /readyz is 200.",
            ((of("ready"), EACH),),
            kind="stat",
            width=4,
        ),
        Panel(
            "In flight",
            "Samples accepted and not settled.",
            ((f"sum({of('samples_inflight')})", "in flight"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Settled",
            "Samples a second, whatever their outcome.",
            ((SETTLED, "settled"),),
            unit="cps",
            kind="stat",
            width=4,
        ),
        Panel(
            "Failed",
            "Share of the settled samples that are errors for users.",
            ((f"{FAILED} / {SETTLED}", "failed"),),
            unit="percentunit",
            kind="stat",
            width=4,
        ),
        Panel(
            "Upstreams available",
            "Upstreams that a sample may go to.",
            ((of("upstreams_available"), EACH),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Build",
            "Version of the gateway, and its Python.",
            ((of("build_info"), "{{version}} on {{python}}"),),
            kind="stat",
            width=4,
        ),
    ),
    "Traffic": (
        Panel(
            "Samples settled",
            "By outcome. gone: handed back, their clients submit them again.",
            ((rate("samples_total", "outcome"), "{{outcome}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Polls answered",
            "By what they found. pending: the hold ended first.",
            ((rate("polls_total", "result"), "{{result}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Samples sent again",
            "By what failed.",
            ((rate("retries_total", "reason"), "{{reason}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Connections and parked polls",
            "Of clients, open now.",
            ((of("connections"), f"connections {EACH}"), (of("polls_inflight"), f"polls {EACH}")),
        ),
        Panel(
            "Connections ended",
            "For a fault of their client.",
            ((rate("connections_closed_total", "reason"), "{{reason}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Sessions",
            "Of clients, kept now.",
            ((of("sessions"), EACH),),
        ),
    ),
    "Latency by stage": (
        Panel(
            "A sample, from accept to settlement",
            "Over all instances.",
            quantiles("sample_duration_seconds"),
            unit="s",
        ),
        *(
            Panel(
                title,
                text,
                tuple(
                    (expr.replace(MINE, f'{MINE},stage="{stage}"'), legend)
                    for expr, legend in quantiles("stage_seconds")
                ),
                unit="s",
            )
            for stage, title, text in (
                ("queued", "In line", "Before and between tries; grows when upstreams are full."),
                ("upstream", "At the upstream", "All tries together."),
                ("deliver", "Settled and not delivered", "Until a poll fetched it."),
            )
        ),
        Panel(
            "The gateway's own time",
            "From the upstream's whole answer to the settled result.",
            quantiles("overhead_seconds"),
            unit="s",
        ),
        Panel(
            "Mean time in each stage",
            "",
            ((f"{STAGE_S} / ({STAGES} > 0)", "{{stage}}"),),
            unit="s",
            stacked=True,
        ),
    ),
    "In flight and in line": (
        Panel(
            "Samples by state",
            "",
            tuple(
                (f"sum({of(f'samples_{state}')})", state)
                for state in ("queued", "running", "undelivered", "lost")
            ),
            stacked=True,
        ),
        Panel(
            "In flight of the limit",
            "At store.max_in_flight submits are refused.",
            (
                (of("samples_inflight"), EACH),
                (of("samples_inflight_limit"), f"limit {EACH}"),
            ),
        ),
        Panel(
            "Lost races",
            "By what came too late for its sample.",
            ((rate("late_events_total", "event"), "{{event}}"),),
            unit="cps",
        ),
    ),
}
