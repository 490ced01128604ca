"""Every shipped scenario: it loads, fits into a small machine, and runs in a miniature of it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from loadgen.__main__ import parser
from loadgen.flags import plan_of
from loadgen.plan import Plan
from loadgen.preflight import preflight
from loadgen.report.validation import problems
from loadgen.results import decode
from loadgen.scenarios import FULL, SCENARIOS
from loadgen.served import stand_in_flags
from loadgen.upstream_command import settings_from
from tests.loadgen.test_preflight import limits
from tests.loadgen.test_run_command import GATEWAY, loadgen

MINIATURES = {
    "smoke": (),
    "burst": ("-n", "300", "--time", "0.1"),
    "full": ("-n", "300", "--time", "0.01"),
    "steady": ("--time", "0.02"),
    "soak": ("--time", "0.02"),
    "long-outputs": ("-n", "8"),
    "long-many": ("-n", "64"),
    "queued": ("-n", "300", "--time", "0.04"),
}
"""Flags that make of each a run of some seconds; smoke takes its ten, which are made for CI."""

IN_LINE = ("--upstream-args", "--gen-seconds 5 --max-num-seqs 50")
"""Of `queued`: so few at a time that the miniature has a line, too."""


def arguments(name: str, *more: str) -> argparse.Namespace:
    return parser().parse_args(["run", "--start", "server", "--scenario", name, *more])


def plan(name: str, *more: str) -> Plan:
    return plan_of(arguments(name, *more), "http://127.0.0.1:8000", "futures")


@pytest.mark.parametrize("name", SCENARIOS)
def test_it_makes_a_plan_and_a_stand_in_that_answers_it(name: str) -> None:
    made = plan(name)
    settings, _ = settings_from(stand_in_flags(arguments(name)))
    assert made.prompt_tokens.high + made.output_tokens.high <= settings.max_model_len
    assert made.barrier == (settings.barrier is not None)
    rate = made.rate if made.arrivals != "closed" else 1_000
    assert made.within_s > made.samples / rate + made.hold_s + 10 * settings.delay_s
    if settings.max_num_seqs:
        rounds = made.samples / settings.max_num_seqs
        assert made.within_s > 2 * rounds * settings.delay_s


@pytest.mark.parametrize("name", SCENARIOS)
def test_it_fits_into_20_000_descriptors_and_16_gb_with_batched_polls(name: str) -> None:
    found = preflight(plan(name), limits(memory=16 << 30))
    assert found.ok, [check for check in found.checks if not check.ok]


def test_the_loads_of_the_public_server_are_among_them() -> None:
    assert FULL == 131_072
    for name in ("burst", "queued", "long-many", "full"):
        assert plan(name).samples == FULL
    many = plan("long-outputs")
    assert (many.samples, many.output_tokens.low) == (512, 32_768)
    assert plan("long-many").output_tokens.low == 8_192
    assert plan("full").hold_s == 60
    queued, _ = settings_from(stand_in_flags(arguments("queued")))
    assert (queued.delay_s, queued.max_num_seqs) == (5.0, 2_048)


@pytest.mark.parametrize("name", SCENARIOS)
def test_its_stand_in_remembers_every_sample_with_room_for_those_submitted_anew(name: str) -> None:
    settings, _ = settings_from(stand_in_flags(arguments(name)))
    assert settings.ids_kept >= 1.5 * plan(name).samples


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_miniature_of_it_is_clean(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASGI_GATEWAY_CLIENT__SAMPLE_USE_RETRIEVE_FUTURES", "true")
    monkeypatch.setenv("ASGI_GATEWAY_STATE__DIR", str(tmp_path / "state"))
    file, page = tmp_path / "result.json", tmp_path / "page.html"
    small = (*MINIATURES[name], *(IN_LINE if name == "queued" else ()))
    files = ("--json", str(file), "--html", str(page))
    told = loadgen("run", "--scenario", name, "--quiet", "--start", GATEWAY, *files, *small)
    assert told.returncode in (0, 3), told.stderr  # 3 on a busy machine
    result = decode(file.read_bytes())
    assert list(problems(result)) == []
    assert result.plan.samples == plan(name, *MINIATURES[name]).samples
    assert result.outcomes.succeeded == result.outcomes.total == result.plan.samples
    assert result.doubled.total == 0
    assert result.upstream is not None
    assert (result.upstream.samples, result.upstream.missing) == (result.plan.samples, 0)
    if not result.plan.abandon:
        assert result.traffic.polls_abandoned == 0
    assert result.verdict.clean
    assert result.verdict.valid == (told.returncode == 0)
    assert bool(result.verdict.reasons) == (told.returncode == 3)
    assert result.preflight is not None
    assert result.preflight.ok
    assert f"{result.plan.samples:,}" in page.read_text()
    if name == "queued":
        assert result.upstream.running_peak > 50, "those in line count"
        assert result.seconds > 300 / 50 * 5 * 0.04 * 0.9
