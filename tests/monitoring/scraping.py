"""Debian's Prometheus with what is shipped for it, scraping live gateways."""

import contextlib
import json
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.monitoring.shipped import path
from tests.support.processes import Process, free_port, process

WITHIN_S: Final = 40.0
# A window of some scrapes, by default one each second.
WINDOW: Final = "10s"


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

    def alerts(self, *states: str) -> set[tuple[str, str]]:
        """Those in one of the states, pending or firing, each with its instance."""
        found = self.ask("alerts")["alerts"]
        names = [alert["labels"] for alert in found if alert["state"] in states]
        return {(labels["alertname"], labels["instance"]) for labels in names}

    def all_evaluated(self) -> bool:
        (group,) = self.ask("rules")["groups"]
        return all(rule["health"] == "ok" for rule in group["rules"])

    def is_up(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.numbers("up"))
        return False


def configuration(
    folder: Path, targets: Sequence[str], *, every_s: int, rules: Path, key: str | None
) -> Path:
    """The one that is shipped, with other targets, and more scrapes."""
    shipped = yaml.safe_load(path("prometheus.yml").read_text())
    shipped["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), f"{every_s}s")
    assert shipped["rule_files"] == ["alerts.yml"]
    shipped["rule_files"] = [str(rules)]
    (job,) = shipped["scrape_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    if key is not None:
        (folder / "key").write_text(key)
        job["authorization"] = {"credentials_file": str(folder / "key")}
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(shipped))
    return file


@contextlib.contextmanager
def scraping(
    folder: Path,
    targets: Sequence[str],
    *,
    every_s: int = 1,
    rules: Path | None = None,
    key: str | None = None,
) -> Iterator[Prometheus]:
    """rules: in place of those that are shipped. key: an API key for the scrapes."""
    port = free_port()
    file = configuration(
        folder, targets, every_s=every_s, rules=rules or path("alerts.yml"), key=key
    )
    command = [
        *("prometheus", f"--config.file={file}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with process(command) as running:
        prometheus = Prometheus(port, running)
        running.wait_for(prometheus.is_up, "first scrape")
        yield prometheus


def load(url: str) -> list[str]:
    """40 samples a second with a poll for each; longer than the test lasts."""
    return [
        *(sys.executable, "-m", "loadgen", "run", "--url", url, "--style", "future"),
        *("--arrivals", "constant", "--rate", "40", "--samples", "16000", "--quiet"),
        *("--prompt-tokens", "16", "--output-tokens", "8", "--no-preflight", "--no-oracle"),
    ]


def asked(queries: list[str], instance: str = ".+") -> list[str]:
    """Queries of the dashboard with its variables filled in."""
    variables = {"$job": ".+", "$instance": instance, "$__rate_interval": WINDOW}
    for name, value in variables.items():
        queries = [query.replace(name, value) for query in queries]
    assert not any("$" in query for query in queries)
    return queries


def unfilled(prometheus: Prometheus, wanted: list[str], series: int = 1) -> list[str]:
    """Those that never gave so many series, asked again and again."""
    until = time.monotonic() + WITHIN_S
    while True:
        wanted = [query for query in wanted if len(prometheus.numbers(query)) < series]
        if not wanted or time.monotonic() > until:
            return wanted
        time.sleep(0.2)
