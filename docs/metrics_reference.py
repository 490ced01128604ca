"""Writes docs/metrics.md from what gateways of each kind register.

    python docs/metrics_reference.py [--check]

With --check nothing is written: it says whether the page is stale.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from generated import run, stale

from asgi_gateway import Gateway
from asgi_gateway.configuration import load
from asgi_gateway.frontdoor import FrontDoor
from asgi_gateway.metrics import OTHER, Metrics
from asgi_gateway.settings import Settings
from asgi_gateway.standalone import Standalone
from asgi_gateway.workers.fellows import Fellows
from asgi_gateway.workers.told import Told

PAGE = Path(__file__).resolve().parent / "metrics.md"
UPSTREAMS = ["http://first.example:8001", "http://second.example:8001"]
SOURCE = "sqlite:////path/tinker.db"
STORE = "valkey://valkey.example"
# Their values are the operator's or the build's; those of the other labels are listed.
OPEN = {"upstream", "version", "python"}
LABEL = re.compile(r'(\w+)="([^"]*)"')

HEAD = """\
# Metrics

Every family of `GET /metrics`, written by `docs/metrics_reference.py` from the texts that a scrape
has. [Logs and metrics](observability.md#metrics) says how to read them, [the runbook](runbook.md)
what to do at an alert.

Times are seconds, sizes are bytes. Values of labels are fixed by the code or by the configuration,
never by what is sampled: no session, request, prompt, path, secret or address of a client. What is
counted under none of the values listed here is `other`. So the number of series is constant as long
as the upstreams are the same: {series} with one of them and everything on this page in use, {more}
more for each further one.
"""


def settings(urls: Iterable[str] = UPSTREAMS[:1], **flags: Any) -> Settings:
    """flags: by dotted path with __ for the dots."""
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    return load({"upstream.urls": list(urls), **dotted}, environ={}).settings


def front_door() -> Metrics:
    metrics = Metrics()
    FrontDoor(settings().limits, keepalive_s=60.0, connections=1, metrics=metrics)
    return metrics


def several(folder: Path) -> Metrics:
    metrics = Metrics()
    gateway = Gateway(settings())
    Fellows(Told(0, 1, 2, 0, 0, str(folder)), metrics, no_state, gateway.drain_upstream)
    return metrics


async def no_state() -> bytes:
    return b""


def kinds(folder: Path) -> Iterator[tuple[str, Metrics]]:
    """What has metrics, and the metrics of a gateway that has it."""
    keys = folder / "keys.toml"
    keys.write_text(f'[reader]\nsha256 = "{64 * "a"}"\n')
    yield "Every gateway", Gateway(settings()).metrics
    yield "`serve` and `create_app`", Standalone(settings()).metrics
    yield "`serve` alone", front_door()
    yield "`serve` with several processes, `server.workers`", several(folder)
    yield "With `upstream.source`", Gateway(settings((), upstream__source=SOURCE)).metrics
    yield "With a journal, `state.dir`", Gateway(settings(state__dir=str(folder / "s"))).metrics
    yield "With API keys, `access`", Gateway(settings(access__keys_file=str(keys))).metrics
    title = "With a log of samples or requests, `log.samples`, `log.access`"
    yield title, Gateway(settings(log__samples="-")).metrics
    yield "With a shared store, `store.url`", Gateway(settings(store__url=STORE)).metrics
    yield "With spans, `tracing.otlp`", Gateway(settings(tracing__otlp=True)).metrics


def series(metrics: Metrics) -> list[str]:
    """Names with labels, as a scrape has them."""
    lines = metrics.render().decode().splitlines()
    return [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]


def values(name: str, label: str, scraped: Iterable[str]) -> str:
    """A label, with its values where these are ours."""
    if label in OPEN:
        return f"`{label}`"
    mine = [dict(LABEL.findall(one)) for one in scraped if one.split("{")[0].startswith(name)]
    found = dict.fromkeys(labels[label] for labels in mine if label in labels)
    return f"`{label}`: {', '.join(value for value in found if value != OTHER)}"


def page() -> str:
    known: set[str] = set()
    every: set[str] = set()
    text = ""
    with tempfile.TemporaryDirectory() as folder:
        for title, metrics in kinds(Path(folder)):
            scraped = series(metrics)
            every.update(scraped)
            text += f"\n## {title}\n\n| metric | type | labels | |\n|---|---|---|---|\n"
            for family in metrics.families:
                if family.name not in known:
                    known.add(family.name)
                    labels = "; ".join(values(family.name, one, scraped) for one in family.labels)
                    text += f"| `{family.name}` | {family.kind} | {labels} | {family.text} |\n"
    more = len(series(Gateway(settings(UPSTREAMS)).metrics)) - len(
        series(Gateway(settings()).metrics)
    )
    return HEAD.format(series=len(every), more=more) + text


def problems() -> list[str]:
    return stale(PAGE, page())


if __name__ == "__main__":
    raise SystemExit(run(PAGE, page, problems))
