"""The files themselves: what they read exists, and each alert has its section of the runbook."""

import re
import subprocess
import sys

import pytest

from docs import metrics_reference
from tests.monitoring.shipped import FOLDER, dashboard, names, panels, queries, rules, runbook
from tests.support.processes import ROOT

DOCUMENTED = set(
    re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
)
PARTS = ("Means", "Users see", "Find out", "Do")


def test_the_reference_is_what_is_registered() -> None:
    assert list(metrics_reference.problems()) == []


def test_a_stale_reference_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = metrics_reference.HEAD.replace("Metrics", "Figures")
    monkeypatch.setattr(metrics_reference, "HEAD", stale)
    assert list(metrics_reference.problems())


def test_alerts_and_dashboard_read_metrics_that_exist() -> None:
    read = set().union(*(names(query) for query in queries()))
    read |= set().union(*(names(rule["expr"]) for rule in rules()))
    assert read <= DOCUMENTED
    assert len(read) > 40


def test_the_dashboard_is_what_its_program_writes() -> None:
    command = [sys.executable, str(FOLDER / "dashboard.py"), "--check"]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def test_the_dashboard_asks_the_chosen_gateways_of_the_chosen_source() -> None:
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert variables == {"datasource", "job", "instance"}
    for panel in panels():
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for query in queries():
        selectors = re.findall(r"\{[^}]*\}", query)
        assert len(selectors) == len(re.findall(r"\b(?:asgi_gateway|process)_\w+", query)), query
        assert all('job=~"$job",instance=~"$instance"' in found for found in selectors), query


def test_panels_do_not_cover_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(numbers) == len(set(numbers))


def test_every_alert_says_what_it_is_and_where_to_read_on() -> None:
    sections = runbook()
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        name = rule["alert"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        found = re.findall(r"^\*\*([\w ]+?)\.?\*\*", sections.pop(name), re.MULTILINE)
        assert set(PARTS) <= set(found) or name == "AsgiGatewayAdmissionRefuses", name
    assert sections == {}, "sections without an alert"


def test_the_runbook_asks_for_what_exists() -> None:
    for name, text in runbook().items():
        for query in re.findall(r"`([^`]*)`", text):
            assert names(query) <= DOCUMENTED, name
