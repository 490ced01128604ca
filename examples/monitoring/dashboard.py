"""Writes dashboard.json, a Grafana dashboard of one or several gateways, from the rows beside it.

    python examples/monitoring/dashboard.py [--check]

Import the JSON in Grafana (11 or newer) and choose a Prometheus data source. With --check nothing
is written: the exit status says whether the file is stale.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import dashboard_process
import dashboard_samples
import dashboard_several
import dashboard_upstreams
from dashboard_panels import PROMETHEUS, Panel, panel

FILE: Final = Path(__file__).resolve().parent / "dashboard.json"
WIDTH: Final = 24
ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    **dashboard_samples.ROWS,
    **dashboard_upstreams.ROWS,
    **dashboard_process.ROWS,
    **dashboard_several.ROWS,
}


def panels() -> Iterator[dict[str, Any]]:
    """Rows from the top, panels of each from the left."""
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
