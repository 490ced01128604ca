"""Debian's Prometheus scrapes a live gateway under load with faults: every query has data."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.monitoring.shipped import names, path, queries, rules, vectors
from tests.support.keyed import entries, secret_of
from tests.support.processes import Process, Served, free_port, process, serve, stand_in

pytestmark = pytest.mark.system

WITHIN_S: Final = 40.0
# A window of some scrapes, each second.
WINDOW: Final = "10s"
FAULTS: Final = "500:0.1,bad_request:0.1,reset_body:0.1,abort:0.05,null:0.05"


class Prometheus:
    def __init__(self, port: int, running: Process) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self.running = running

    def ask(self, route: str, **parameters: str) -> Any:
        url = f"{self._url}/{route}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def numbers(self, query: str) -> list[float]:
        """What an instant query gives, without NaN."""
        found = [float(one["value"][1]) for one in self.ask("query", query=query)["result"]]
        return [number for number in found if number == number]

    def is_up(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.numbers("up"))
        return False


def load(url: str) -> list[str]:
    """40 samples a second with a poll for each; longer than the test lasts."""
    return [
        *(sys.executable, "-m", "loadgen", "run", "--url", url, "--style", "future"),
        *("--arrivals", "constant", "--rate", "40", "--samples", "4000", "--quiet"),
        *("--prompt-tokens", "16", "--output-tokens", "8", "--no-preflight", "--no-oracle"),
    ]


def configuration(folder: Path, gateway: Served) -> Path:
    """The one that is shipped, with another target, a key, and scrapes every second."""
    shipped = yaml.safe_load(path("prometheus.yml").read_text())
    shipped["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    assert shipped["rule_files"] == ["alerts.yml"]
    shipped["rule_files"] = [str(path("alerts.yml"))]
    (job,) = shipped["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{gateway.port}"]}]
    key = folder / "key"
    key.write_text(secret_of("prometheus"))
    job["authorization"] = {"credentials_file": str(key)}
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(shipped))
    return file


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(entries({"trainer": {}, "prometheus": {"scopes": ["metrics"]}}))
    return file


@pytest.fixture(scope="module")
def gateway(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With all that has metrics of its own; of its two upstreams one is not there."""
    folder = tmp_path_factory.mktemp("gateway")
    with (
        stand_in("--gen-seconds", "0.05", "--faults", FAULTS) as url,
        serve(
            url,
            *("--upstream", f"http://127.0.0.1:{free_port()}"),
            access__keys_file=keys,
            state__dir=folder / "state",
            log__samples=folder / "samples.log",
            upstream__health_interval_s=0.5,
        ) as served,
        process(load(served.url), {"LOADGEN_API_KEY": secret_of("trainer")}),
    ):
        yield served


@pytest.fixture(scope="module")
def prometheus(gateway: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    command = [
        *("prometheus", f"--config.file={configuration(folder, gateway)}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with process(command) as running:
        prometheus = Prometheus(port, running)
        running.wait_for(prometheus.is_up, "first scrape")
        yield prometheus


def filled(prometheus: Prometheus, wanted: list[str]) -> dict[str, list[float]]:
    """Answers of all queries, asked again while one has none; those that never had are left out."""
    until = time.monotonic() + WITHIN_S
    found: dict[str, list[float]] = {}
    while missing := [query for query in wanted if query not in found]:
        found |= {query: got for query in missing if (got := prometheus.numbers(query))}
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    return found


def test_every_query_of_the_dashboard_has_data(prometheus: Prometheus) -> None:
    variables = {"$job": ".+", "$instance": ".+", "$__rate_interval": WINDOW}
    wanted = []
    for query in queries():
        for name, value in variables.items():
            query = query.replace(name, value)
        assert "$" not in query
        wanted.append(query)
    found = filled(prometheus, wanted)
    assert [query for query in wanted if query not in found] == []


def test_the_load_was_of_every_kind(prometheus: Prometheus) -> None:
    """So that what the dashboard shows of failures is not all zero."""
    for query in (
        *(f'asgi_gateway_samples_total{{outcome="{x}"}}' for x in ("succeeded", "failed", "gone")),
        *(
            f'sum(asgi_gateway_upstream_requests_total{{code="{code}"}})'
            for code in ("ok", "engine_fault", "rejected", "interrupted", "aborted")
        ),
        'asgi_gateway_retries_total{reason="engine_fault"}',
        'asgi_gateway_polls_total{result="ready"}',
        "asgi_gateway_upstream_up == bool 0",
        "asgi_gateway_overhead_seconds_count",
    ):
        assert filled(prometheus, [f"{query} > 0"]), query


def test_every_alert_reads_what_is_there(prometheus: Prometheus) -> None:
    wanted = [vector for rule in rules() for vector in vectors(rule["expr"])]
    found = filled(prometheus, wanted)
    assert [vector for vector in wanted if vector not in found] == []
    (group,) = prometheus.ask("rules")["groups"]
    assert len(group["rules"]) == len(rules())
    prometheus.running.wait_for(
        lambda: all(r["health"] == "ok" for r in prometheus.ask("rules")["groups"][0]["rules"]),
        "evaluation of all rules",
    )


def test_an_upstream_that_is_not_there_is_on_its_way_to_an_alert(prometheus: Prometheus) -> None:
    def pending() -> set[str]:
        return {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]}

    prometheus.running.wait_for(
        lambda: pending() >= {"AsgiGatewayUpstreamDown", "AsgiGatewaySamplesFail"}, "alerts"
    )


def test_promtool_finds_nothing_in_a_scrape(gateway: Served, prometheus: Prometheus) -> None:
    """Every family has its HELP and TYPE, is named as it should be, and is valid text."""
    request = urllib.request.Request(
        f"{gateway.url}/metrics", headers={"X-API-Key": secret_of("prometheus")}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    told = prometheus.ask("metadata", limit="1000")
    for query in [*queries(), *(rule["expr"] for rule in rules())]:
        assert names(query) <= told.keys()


def test_a_faulty_scrape_would_be_told() -> None:
    text = b"asgi_gateway_bugs_total 0\nasgi_gateway_samples{a=b} 1\n"
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False, timeout=60
    )
    assert done.returncode
