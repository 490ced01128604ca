"""A panel of the dashboard: what it asks Prometheus, and how it is drawn."""

from typing import Any, Final, NamedTuple

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
