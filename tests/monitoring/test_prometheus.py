"""Debian's Prometheus scrapes a live gateway under load with faults: every query has data."""

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.monitoring.scraping import Prometheus, asked, load, scraping, unfilled
from tests.monitoring.shipped import names, queries_of, rules, rules_of, vectors
from tests.support.keyed import entries, secret_of
from tests.support.processes import Served, free_port, process, serve, stand_in

pytestmark = pytest.mark.system

FAULTS: Final = "500:0.1,bad_request:0.1,reset_body:0.1,abort:0.05,null:0.05"


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
    folder, target = tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{gateway.port}"
    with scraping(folder, [target], key=secret_of("prometheus")) as prometheus:
        yield prometheus


def test_every_query_of_the_dashboard_has_data(prometheus: Prometheus) -> None:
    """But for those on several gateways."""
    assert unfilled(prometheus, asked(queries_of(several=False))) == []


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
        assert unfilled(prometheus, [f"{query} > 0"]) == []


def test_every_alert_reads_what_is_there(prometheus: Prometheus) -> None:
    wanted = [vector for rule in rules_of(several=False) for vector in vectors(rule["expr"])]
    assert unfilled(prometheus, wanted) == []
    (group,) = prometheus.ask("rules")["groups"]
    assert len(group["rules"]) == len(rules())
    prometheus.running.wait_for(prometheus.all_evaluated, "evaluation of all rules")


def test_an_upstream_that_is_not_there_is_on_its_way_to_an_alert(prometheus: Prometheus) -> None:
    wanted = {"AsgiGatewayUpstreamDown", "AsgiGatewaySamplesFail"}
    prometheus.running.wait_for(
        lambda: wanted <= {name for name, _ in prometheus.alerts("pending", "firing")}, "alerts"
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
    for query in [*queries_of(several=False), *(r["expr"] for r in rules_of(several=False))]:
        assert names(query) <= told.keys()


def test_a_faulty_scrape_would_be_told() -> None:
    text = b"asgi_gateway_bugs_total 0\nasgi_gateway_samples{a=b} 1\n"
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False, timeout=60
    )
    assert done.returncode
