"""Each alert fires on a made-up history that is bad, and not on one that is well."""

import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml

from tests.monitoring.shipped import path, rules

pytestmark = pytest.mark.system

G: Final = "asgi_gateway_"
# Minute by minute for two hours, as promtool writes it: start+step x times.
STILL: Final = "0x120"
GROWS: Final = "0+60x120"
# Up by one after an hour and a half, shortly before it is looked.
ONCE: Final = "0x88 1x32"
LOOKED_AT: Final = "92m"


class History(NamedTuple):
    """Values of series, by name with labels."""

    bad: dict[str, str]
    well: dict[str, str]


def once(name: str) -> History:
    return History({f"{G}{name}": ONCE}, {f"{G}{name}": STILL})


def gauge(name: str, bad: float, well: float) -> History:
    return History({f"{G}{name}": f"{bad:g}x120"}, {f"{G}{name}": f"{well:g}x120"})


def outcomes(**per_minute: int) -> dict[str, str]:
    return {
        f'{G}samples_total{{outcome="{outcome}"}}': f"0+{n}x120"
        for outcome, n in per_minute.items()
    }


def shares(name: str, limit: str, bad: float, well: float) -> History:
    return History(
        {name: f"{bad:g}x120", limit: "100x120"}, {name: f"{well:g}x120", limit: "100x120"}
    )


HISTORIES: Final = {
    "Down": History({"up": "0x120"}, {"up": "1x120"}),
    "NotReady": History(
        {f"{G}ready": "0x120", f"{G}draining": "0x120"},
        # Not ready, but somebody stops it.
        {f"{G}ready": "0x120", f"{G}draining": "2x120"},
    ),
    "NoUpstream": gauge("upstreams_available", 0, 1),
    "UpstreamDown": gauge('upstream_up{upstream="a:1"}', 0, 1),
    # Half open every other minute, and one that opened once.
    "BreakerOpen": History(
        {f'{G}breaker_state{{upstream="a:1"}}': " ".join(["2 1"] * 60)},
        {f'{G}breaker_state{{upstream="a:1"}}': "0x88 2 1 0x30"},
    ),
    "UpstreamHung": once("upstream_hung_total"),
    "SamplesFail": History(
        outcomes(succeeded=90, failed=10, gone=0), outcomes(succeeded=99, failed=1, gone=50)
    ),
    "SamplesHandedBack": History(
        outcomes(succeeded=90, failed=0, gone=10), outcomes(succeeded=99, failed=50, gone=1)
    ),
    "ResultsUnfetched": once("results_unfetched_total"),
    # Many, but fewer and fewer.
    "UndeliveredGrow": History(
        {f"{G}samples_undelivered": "0+60x120"}, {f"{G}samples_undelivered": "9000-60x120"}
    ),
    "AdmissionRefuses": History(
        {f'{G}admission_rejected_total{{reason="in_flight"}}': GROWS},
        # For a moment, for a stop, and by the limit of a key.
        {
            f'{G}admission_rejected_total{{reason="in_flight"}}': "0x85 900x35",
            f'{G}admission_rejected_total{{reason="drain"}}': GROWS,
            f'{G}admission_rejected_total{{reason="key_rate"}}': GROWS,
        },
    ),
    "QueueGrows": History(
        {f"{G}samples_queued": "0+60x120"}, {f"{G}samples_queued": "9000-60x120"}
    ),
    "BytesNearLimit": shares(f"{G}charged_bytes", f"{G}charged_bytes_limit", 95, 50),
    "MemorySheds": gauge("memory_level", 2, 1),
    "LoopLags": gauge("event_loop_lag_recent_seconds", 0.9, 0.05),
    "LoopStalls": once("loop_stalls_total"),
    "JournalUnhealthy": gauge("journal_healthy", 0, 1),
    "StoreErrors": once("store_errors_total"),
    "StoreDown": gauge("store_up", 0, 1),
    # Taken a minute later.
    "StoreBehind": History(
        {f"{G}store_unwritten": "500x120"}, {f"{G}store_unwritten": " ".join(["500 0"] * 60)}
    ),
    "Fenced": once("store_fenced_total"),
    "Buried": once("store_buried_total"),
    # In a rolling restart, and replaced a moment ago.
    "WorkersMissing": History(
        {f"{G}workers": "2x120", f"{G}workers_answered": "1x120"},
        {f"{G}workers": "2x120", f"{G}workers_answered": "3x91 1 2x28"},
    ),
    "WorkerDied": once("worker_deaths_total"),
    "DescriptorsNearLimit": shares("process_open_fds", "process_max_fds", 95, 50),
    "DescriptorsExhausted": once("descriptors_exhausted_total"),
    "LogLinesDropped": once("log_dropped_total"),
    "ConfigNotReloaded": once("config_reload_failures_total"),
    "KeysNotReloaded": once("access_failed_reloads_total"),
    "Bugs": once("bugs_total"),
}
PREFIX: Final = "AsgiGateway"


def labelled(series: str) -> str:
    """As scraped from one instance."""
    name, _, labels = series.partition("{")
    target = 'job="asgi-gateway",instance="10.0.0.1:8000"'
    return f"{name}{{{target}{',' + labels.rstrip('}') if labels else ''}}}"


def case(alert: str, history: dict[str, str], firing: bool) -> dict[str, object]:
    expected = [{"labels": "{}", "value": 1}] if firing else []
    query = f'count(ALERTS{{alertname="{PREFIX}{alert}",alertstate="firing"}})'
    return {
        "name": f"{alert}, {'bad' if firing else 'well'}",
        "interval": "1m",
        "input_series": [{"series": labelled(s), "values": v} for s, v in history.items()],
        "promql_expr_test": [{"expr": query, "eval_time": LOOKED_AT, "exp_samples": expected}],
    }


def run(folder: Path, cases: list[dict[str, object]]) -> subprocess.CompletedProcess[str]:
    file = folder / "alerts_test.yml"
    tests = {
        "rule_files": [str(path("alerts.yml"))],
        "evaluation_interval": "1m",
        "tests": cases,
    }
    file.write_text(yaml.safe_dump(tests, sort_keys=False))
    return subprocess.run(
        ["promtool", "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_every_alert_has_a_history() -> None:
    assert {rule["alert"] for rule in rules()} == {f"{PREFIX}{alert}" for alert in HISTORIES}


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    cases = [case(alert, history.bad, firing=True) for alert, history in HISTORIES.items()]
    cases += [case(alert, history.well, firing=False) for alert, history in HISTORIES.items()]
    done = run(tmp_path, cases)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_expectation_would_be_told(tmp_path: Path) -> None:
    history = HISTORIES["LoopStalls"]
    assert run(tmp_path, [case("LoopStalls", history.well, firing=True)]).returncode
    assert run(tmp_path, [case("LoopStalls", history.bad, firing=False)]).returncode


def test_promtool_takes_rules_and_configuration() -> None:
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        command = ["promtool", "check", kind, str(path(name))]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
