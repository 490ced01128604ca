"""What examples/monitoring ships, read for tests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.processes import ROOT

FOLDER: Final = ROOT / "examples" / "monitoring"
RUNBOOK: Final = ROOT / "docs" / "runbook.md"
# The dashboard's row on them.
SEVERAL: Final = "Several gateways"
# What a query compares with, where that ends it or a part of it.
_THRESHOLD: Final = re.compile(r"\s(?:==|>=|>|<)\s[\d.]+$")


def rules() -> list[dict[str, Any]]:
    text = (FOLDER / "alerts.yml").read_text()
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def vectors(expr: str) -> Iterator[str]:
    """The parts of an alert's expression without what they are compared with."""
    for part in expr.split(" and "):
        vector, count = _THRESHOLD.subn("", part)
        assert count == 1, f"no threshold in {part!r}"
        yield vector


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    """Without the rows' titles."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rows() -> dict[str, list[str]]:
    """Every query of the dashboard, by the title of its row."""
    found: dict[str, list[str]] = {}
    for panel in dashboard()["panels"]:
        if panel["type"] == "row":
            title = panel["title"]
            found[title] = []
        else:
            found[title] += [target["expr"] for target in panel["targets"]]
    return found


def queries() -> list[str]:
    return [query for row in rows().values() for query in row]


def queries_of(several: bool) -> list[str]:
    """Those on gateways that are several, or the rest."""
    chosen = [row for title, row in rows().items() if (title == SEVERAL) == several]
    return [query for row in chosen for query in row]


def rules_of(several: bool) -> list[dict[str, Any]]:
    """Those that read what only gateways have that are several, or the rest."""
    only = set().union(*(names(query) for query in queries_of(several=True)))
    return [rule for rule in rules() if bool(names(rule["expr"]) & only) == several]


def names(query: str) -> set[str]:
    """The metrics that a query reads, as families."""
    found = re.findall(r"\b(?:asgi_gateway|process)_\w+", query)
    return {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in found}


def runbook() -> dict[str, str]:
    """Sections by heading."""
    parts = re.split(r"^## (.*)$", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def path(name: str) -> Path:
    return FOLDER / name
