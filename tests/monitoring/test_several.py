"""Prometheus scrapes two live gateways of two workers each over one store, and is told of what
befalls them.

In the order of the file: what is asked of them while all is well comes before what is done to them.
"""

import contextlib
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest
import yaml

from tests.monitoring.scraping import WITHIN_S, Prometheus, asked, load, scraping, unfilled
from tests.monitoring.shipped import names, path, queries_of, rules_of, vectors
from tests.support.processes import process, serve, stand_in
from tests.support.valkey import Valkey, valkey
from tests.support.workers import Workers

pytestmark = [pytest.mark.servers, pytest.mark.system]

# A scrape waits 1 s for a worker that says nothing, and must not take longer than this.
EVERY_S: Final = 2
# Two scrapes, in place of minutes.
HASTENED: Final = f"{2 * EVERY_S}s"
BURIED: Final = "sum(asgi_gateway_store_buried_total)"


class Site(NamedTuple):
    store: Valkey
    # With load.
    a: Workers
    b: Workers


def target(gateway: Workers) -> str:
    return f"127.0.0.1:{gateway.port}"


def both(site: Site, alert: str) -> set[tuple[str, str]]:
    return {(alert, target(site.a)), (alert, target(site.b))}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(valkey(tmp_path_factory.mktemp("store")))
        url = stack.enter_context(stand_in("--gen-seconds", "0.05"))
        gateways = []
        for _ in range(2):
            shared = serve(url, "--workers", "2", store__url=store.url, store__when_down="degrade")
            served = stack.enter_context(shared)
            gateways.append(Workers("serve", served.port, served.process))
        stack.enter_context(process(load(gateways[0].url)))
        yield Site(store, *gateways)


@pytest.fixture(scope="module")
def prometheus(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Of the shipped rules, those that wait before they fire wait shorter."""
    folder = tmp_path_factory.mktemp("prometheus")
    shipped = yaml.safe_load(path("alerts.yml").read_text())
    for group in shipped["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = HASTENED
    hastened = folder / "alerts.yml"
    hastened.write_text(yaml.safe_dump(shipped))
    targets = [target(site.a), target(site.b)]
    with scraping(folder, targets, every_s=EVERY_S, rules=hastened) as prometheus:
        yield prometheus


def fires(prometheus: Prometheus, wanted: set[tuple[str, str]]) -> None:
    prometheus.running.wait_for(
        lambda: wanted <= prometheus.alerts("firing"), f"alerts {wanted}", WITHIN_S
    )


def ceases(prometheus: Prometheus, unwanted: set[tuple[str, str]]) -> None:
    prometheus.running.wait_for(
        lambda: not unwanted & prometheus.alerts("firing"), f"end of {unwanted}", WITHIN_S
    )


# --- all is well ----------------------------------------------------------------------------------


def test_every_query_on_several_gateways_has_data_of_each(
    site: Site, prometheus: Prometheus
) -> None:
    for gateway in (site.a, site.b):
        wanted = asked(queries_of(several=True), target(gateway))
        assert unfilled(prometheus, wanted) == []


def test_every_alert_reads_what_is_there_of_each(prometheus: Prometheus) -> None:
    found = rules_of(several=True)
    assert len(found) == 6
    wanted = [vector for rule in found for vector in vectors(rule["expr"])]
    assert unfilled(prometheus, wanted, series=2) == []
    prometheus.running.wait_for(prometheus.all_evaluated, "evaluation of all rules")


def test_no_alert_fires_while_all_is_well(prometheus: Prometheus) -> None:
    rounds = f"sum(count_over_time(asgi_gateway_store_up[{5 * EVERY_S}s])) >= 8"
    assert unfilled(prometheus, [rounds]) == []
    several = "|".join(rule["alert"] for rule in rules_of(several=True))
    fired = f'ALERTS{{alertstate="firing",alertname=~"{several}"}}'
    assert prometheus.numbers(f"count_over_time({fired}[5m])") == []
    shown = prometheus.numbers("asgi_gateway_workers_answered == 2 and asgi_gateway_workers == 2")
    assert shown == [2, 2]


def test_promtool_finds_nothing_in_a_scrape_of_several_workers(
    site: Site, prometheus: Prometheus
) -> None:
    with urllib.request.urlopen(f"{site.a.url}/metrics", timeout=10) as answer:
        text = answer.read()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    told = prometheus.ask("metadata", limit="1000")
    for query in [*queries_of(several=True), *(r["expr"] for r in rules_of(several=True))]:
        assert names(query) <= told.keys()


# --- and then it is not ---------------------------------------------------------------------------


def test_a_worker_that_is_killed_is_told(site: Site, prometheus: Prometheus) -> None:
    site.a.members()[1].kill()
    fires(prometheus, {("AsgiGatewayWorkerDied", target(site.a))})
    # By whichever of the others.
    prometheus.running.wait_for(
        lambda: bool(both(site, "AsgiGatewayBuried") & prometheus.alerts("firing")),
        "burial",
        WITHIN_S,
    )
    told = prometheus.alerts("firing")
    assert ("AsgiGatewayWorkerDied", target(site.b)) not in told
    assert not told & both(site, "AsgiGatewayFenced")


def test_a_worker_that_stands_still_is_told_and_that_it_was_fenced(
    site: Site, prometheus: Prometheus
) -> None:
    (before,) = prometheus.numbers(BURIED)
    missing = {("AsgiGatewayWorkersMissing", target(site.b))}
    still = site.b.members()[1]
    still.signal(signal.SIGSTOP)
    try:
        fires(prometheus, missing)
        assert unfilled(prometheus, [f"{BURIED} > {before}"]) == []
        assert not prometheus.alerts("firing") & both(site, "AsgiGatewayFenced")
    finally:
        still.signal(signal.SIGCONT)
    fires(prometheus, {("AsgiGatewayFenced", target(site.b))})
    ceases(prometheus, missing)
    told = prometheus.alerts("firing")
    assert ("AsgiGatewayFenced", target(site.a)) not in told
    assert ("AsgiGatewayWorkerDied", target(site.b)) not in told


def test_a_store_that_is_gone_is_told_and_what_only_the_gateway_has(
    site: Site, prometheus: Prometheus
) -> None:
    down = both(site, "AsgiGatewayStoreDown")
    behind = {("AsgiGatewayStoreBehind", target(site.a))}
    site.store.kill()
    fires(prometheus, down | behind)
    # b has no samples.
    assert ("AsgiGatewayStoreBehind", target(site.b)) not in prometheus.alerts("firing")
    site.store.start()
    ceases(prometheus, down | behind)
