"""Writes dashboard.json, a Grafana dashboard of one or several gateways, from the rows below.

    python examples/monitoring/dashboard.py [--check]

Import the JSON in Grafana (11 or newer) and choose a Prometheus data source. With --check nothing
is written: the exit status says whether the file is stale.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE: Final = Path(__file__).resolve().parent / "dashboard.json"
WIDTH: Final = 24
PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
# Of the gateways chosen above the dashboard, in every query.
MINE: Final = 'job=~"$job",instance=~"$instance"'
EACH: Final = "{{instance}}"


class Panel(NamedTuple):
    """queries: PromQL and legend. A name with braces after it gets MINE within them."""

    title: str
    text: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False


def of(name: str, labels: str = "") -> str:
    return f"asgi_gateway_{name}{{{MINE}{',' + labels if labels else ''}}}"


def rate(name: str, by: str, labels: str = "") -> str:
    return f"sum by ({by}) (rate({of(name, labels)}[$__rate_interval]))"


def quantile(q: float, name: str, by: str = "") -> str:
    return f"histogram_quantile({q:g}, {rate(name + '_bucket', 'le' + (', ' + by if by else ''))})"


def quantiles(name: str, by: str = "", legend: str = "") -> tuple[tuple[str, str], ...]:
    """Median, p90 and p99 of a histogram, over all instances together."""
    return tuple(
        (quantile(q, name, by), f"p{100 * q:g}{' ' + legend if legend else ''}")
        for q in (0.5, 0.9, 0.99)
    )


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
    "Admission": (
        Panel(
            "Submits refused",
            "By what refused them.",
            ((rate("admission_rejected_total", "reason"), "{{reason}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Not ready",
            "1 for each reason.",
            ((of("not_ready"), "{{reason}} " + EACH),),
        ),
        Panel(
            "Draining",
            "0 serving, 1 about to drain, 2 draining.",
            ((of("draining"), EACH),),
        ),
    ),
    "Memory and results": (
        Panel(
            "Bytes charged",
            "Prompts, results and room for answers, of store.max_bytes.",
            ((of("charged_bytes"), EACH), (of("charged_bytes_limit"), f"limit {EACH}")),
            unit="bytes",
        ),
        Panel(
            "Results held",
            "",
            ((of("results_held_bytes"), EACH),),
            unit="bytes",
        ),
        Panel(
            "Results dropped",
            "To make room, and because nobody came for them in time.",
            (
                (rate("evicted_for_room_total", "instance"), f"for room {EACH}"),
                (rate("results_unfetched_total", "instance"), f"unfetched {EACH}"),
            ),
            unit="cps",
        ),
        Panel(
            "Memory of the control group",
            "Without file cache that can be taken back.",
            ((of("memory_used_bytes"), EACH), (of("memory_limit_bytes"), f"limit {EACH}")),
            unit="bytes",
        ),
        Panel(
            "Memory level",
            "0 fine, 1 refusing, 2 dropping delivered results, 3 dropping any.",
            ((of("memory_level"), EACH),),
        ),
        Panel(
            "Resident memory",
            "",
            ((f"process_resident_memory_bytes{{{MINE}}}", EACH),),
            unit="bytes",
        ),
    ),
    "Process, event loop, garbage collector": (
        Panel(
            "CPU",
            "Cores; a gateway uses one at most.",
            ((f"rate(process_cpu_seconds_total{{{MINE}}}[$__rate_interval])", EACH),),
        ),
        Panel(
            "Loop lag",
            "The most of the last half minute: about as long waits whoever is served next.",
            ((of("event_loop_lag_recent_seconds"), EACH),),
            unit="s",
        ),
        Panel(
            "Loop stalls and internal errors",
            "Both have a stack on standard error.",
            (
                (f"increase({of('loop_stalls_total')}[$__rate_interval])", f"stalls {EACH}"),
                (f"increase({of('bugs_total')}[$__rate_interval])", f"errors {EACH}"),
            ),
        ),
        Panel(
            "Garbage collector",
            "Share of the time.",
            (
                (
                    rate("gc_pause_seconds_sum", "generation"),
                    "generation {{generation}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "File descriptors",
            "",
            (
                (f"process_open_fds{{{MINE}}}", EACH),
                (f"process_max_fds{{{MINE}}}", f"limit {EACH}"),
            ),
        ),
        Panel(
            "Tasks",
            "Of the event loop; back to where it was once nothing is to do.",
            ((of("tasks"), EACH),),
        ),
        Panel(
            "Journal",
            "Where state.dir is set.",
            ((of("journal_bytes"), EACH),),
            unit="bytes",
        ),
        Panel(
            "Journal: healthy, errors",
            "Where state.dir is set.",
            (
                (of("journal_healthy"), f"healthy {EACH}"),
                (rate("store_errors_total", "instance"), f"errors {EACH}"),
            ),
        ),
        Panel(
            "Settings",
            "Changes that were taken, and refused.",
            (
                (rate("config_reloads_total", "instance"), f"taken {EACH}"),
                (rate("config_reload_failures_total", "instance"), f"refused {EACH}"),
            ),
            unit="cps",
        ),
        Panel(
            "Sample log",
            "Where log.samples is set.",
            (
                (rate("log_written_total", "instance"), f"written {EACH}"),
                (rate("log_dropped_total", "instance"), f"dropped {EACH}"),
            ),
            unit="cps",
        ),
        Panel(
            "Keys: requests turned away",
            "Where API keys are configured.",
            (
                (rate("access_unauthorized_total", "instance"), f"401 {EACH}"),
                (rate("access_forbidden_total", "instance"), f"403 {EACH}"),
            ),
            unit="cps",
        ),
    ),
}


def panel(given: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    drawn: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
    if given.stacked:
        drawn |= {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30}
    is_stat = given.kind == "stat"
    return {
        "id": number,
        "type": given.kind,
        "title": given.title,
        "description": given.text,
        "datasource": PROMETHEUS,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": given.unit, "min": 0, "custom": {} if is_stat else drawn},
            "overrides": [],
        },
        "options": {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "name" if given.title == "Build" else "auto",
            "colorMode": "none",
            "graphMode": "area",
        }
        if is_stat
        else {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": PROMETHEUS,
                "expr": expr,
                "legendFormat": legend,
                "range": not is_stat,
                "instant": is_stat,
            }
            for index, (expr, legend) in enumerate(given.queries)
        ],
    }


def panels() -> Iterator[dict[str, Any]]:
    """Rows from above, panels of each from the left."""
    number, top = 1, 0
    for title, row in ROWS.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top},
            "panels": [],
        }
        number, top, left = number + 1, top + 1, 0
        height = 4 if row[0].kind == "stat" else 8
        for given in row:
            if left + given.width > WIDTH:
                top, left = top + height, 0
            yield panel(given, number, {"h": height, "w": given.width, "x": left, "y": top})
            number, left = number + 1, left + given.width
        top += height


def chosen(name: str, label: str, query: str) -> dict[str, Any]:
    """A variable whose values Prometheus knows; all of them at first."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": PROMETHEUS,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
        "options": [],
    }


def dashboard() -> dict[str, Any]:
    info = "asgi_gateway_build_info"
    return {
        "uid": "asgi-gateway",
        "title": "asgi_gateway",
        "description": "Sampling gateways: traffic, latency, upstreams, admission, memory, process",
        "tags": ["asgi_gateway"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                    "options": [],
                },
                chosen("job", "Job", f"label_values({info}, job)"),
                chosen("instance", "Instance", f'label_values({info}{{job=~"$job"}}, instance)'),
            ]
        },
        "panels": list(panels()),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if FILE.exists() and FILE.read_text() == text() else 1
    FILE.write_text(text())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
