"""The client against a server that is not ours and leaks: every leak is counted, exactly."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from loadgen.plan import Length, Plan
from loadgen.processes import serving
from loadgen.results import Result
from loadgen.run import Parts, run

EIGHT = Length(low=8, high=8)


@contextmanager
def leaky(leaks: dict[str, int], *flags: str) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.loadgen.leaky", json.dumps(leaks), *flags]
    with serving(command) as child:
        yield child.url


async def result(style: str, leaks: dict[str, int], **fields: Any) -> Result:
    """A run of 120 samples unless told otherwise."""
    flags = ["--batched"] if style == "futures" else []
    with leaky(leaks, *flags) as url:
        plan: dict[str, Any] = {
            "samples": 120,
            "within_s": 30.0,
            "output_tokens": EIGHT,
            "submitters": 1,
        } | fields
        return await run(Plan(scenario="test", url=url, style=style, **plan), Parts())


STYLES = pytest.mark.parametrize("style", ["futures", "future"])


@STYLES
async def test_a_sound_server_is_clean(style: str) -> None:
    found = await result(style, {}, processes=2, sessions=3, submitters=20)
    assert found.outcomes.succeeded == found.outcomes.total == 120
    assert found.doubled.total == 0
    assert found.verdict.clean, found.verdict.problems
    assert found.stages["e2e"].uncorrected.count == 120
    assert sum(found.series.completed) == sum(found.series.accepted) == 120
    assert found.series.in_flight[-1] == 0
    assert found.output_tokens_per_s > 0


@STYLES
async def test_losses(style: str) -> None:
    found = await result(style, {"lose": 40}, within_s=2.0)
    assert (found.outcomes.lost, found.outcomes.succeeded) == (3, 117)
    assert found.outcomes.total == 120
    assert "3 lost" in found.verdict.problems
    assert not found.verdict.clean
    assert found.traffic.polls_empty > 0


@STYLES
async def test_an_id_that_is_given_to_two_samples(style: str) -> None:
    found = await result(style, {"twin": 20})
    assert found.doubled.request_ids == 6
    assert found.outcomes.wrong == {"identity": 6}
    assert found.doubled.results == 6
    assert found.outcomes.total == 120


@STYLES
async def test_another_samples_result(style: str) -> None:
    found = await result(style, {"swap": 30})
    assert found.outcomes.wrong == {"identity": 4}
    assert found.doubled.results == 4
    assert found.outcomes.succeeded == 116


@STYLES
async def test_another_samples_result_without_an_oracle(style: str) -> None:
    """Equal tokens and logprobs after different prompts are one result given twice."""
    found = await result(style, {"swap": 30}, oracle=False)
    assert found.outcomes.succeeded == 120
    assert found.doubled.results == 4
    assert "doubled: 4 answered with another sample's result" in found.verdict.problems


@STYLES
async def test_damaged_results(style: str) -> None:
    found = await result(style, {"short": 60, "ragged": 50}, oracle=False)
    assert found.outcomes.wrong == {"logprobs": 2, "dtype": 2}
    assert found.outcomes.succeeded == 116


@STYLES
async def test_failures_by_category_and_refusals_by_status(style: str) -> None:
    found = await result(style, {"fail": 40, "refuse": 50})
    assert found.outcomes.failed == {"user": 3}
    assert found.outcomes.refused == {"422": 2}
    assert found.outcomes.succeeded == 115


@STYLES
async def test_gone_is_submitted_again_and_a_failing_submit_repeated(style: str) -> None:
    found = await result(style, {"gone": 40, "flaky": 50})
    assert found.outcomes.succeeded == 120
    assert found.traffic.resubmitted == found.traffic.retries["410"] == 3
    assert found.traffic.retries["5xx"] == 2
    assert found.traffic.submits == 125
    assert found.doubled.total == 0


@STYLES
async def test_the_sdks_rules_by_status(style: str) -> None:
    """429 pauses all, an empty 400 is a proxy's noise, a large result is announced first."""
    found = await result(style, {"busy": 60, "bare": 50, "announce": 30, "poll": 100})
    assert found.outcomes.succeeded == 120
    assert found.traffic.retries == {"429": 3, "400": 3, "5xx": 1}
    assert found.traffic.metadata == 4
    assert found.traffic.submits == 124
    assert found.seconds > 2, "two pauses of a second"


@pytest.mark.parametrize("status", [404, 410, 422])
async def test_a_session_that_the_sdk_gives_up(status: int) -> None:
    found = await result("futures", {"poison": status, "poison_at": 100}, submitters=10)
    refused = found.outcomes.refused["poisoned"]
    assert found.outcomes.succeeded + refused == found.outcomes.total == 120
    assert refused > 10
    assert any(f"given up: {status}" in note for note in found.notes)


async def test_completions_that_are_reported_again() -> None:
    found = await result("futures", {"again": 60})
    assert found.outcomes.succeeded == 120
    assert found.traffic.completions_repeated > 0
    assert found.traffic.fetches == 120


@STYLES
async def test_a_share_of_polls_is_given_up_and_asked_again(style: str) -> None:
    found = await result(
        style, {"lose": 30}, abandon=0.5, abandon_within_s=0.1, within_s=4.0, oracle=False
    )
    assert found.traffic.polls_abandoned > 0
    assert (found.outcomes.lost, found.outcomes.succeeded) == (4, 116)


async def test_the_clients_own_limit_on_polls() -> None:
    with leaky({"lose": 60}, "--hold-s", "60") as url:
        plan = Plan(
            scenario="test",
            url=url,
            style="future",
            samples=60,
            poll_timeout_s=0.5,
            within_s=4.0,
            output_tokens=EIGHT,
        )
        found = await run(plan, Parts())
    assert found.outcomes.lost == 1
    assert found.traffic.polls_overdue == found.traffic.retries["timeout"] >= 2


async def test_latency_counts_from_the_plan_in_an_open_loop() -> None:
    found = await result("future", {}, arrivals="constant", rate=200.0, submitters=400)
    assert found.outcomes.succeeded == 120
    assert 0.5 < found.seconds < 10.0
    stage = found.stages["e2e"]
    assert stage.corrected is not None
    assert stage.corrected.mean_ms >= stage.uncorrected.mean_ms
    assert found.series.planned[0] >= 100


async def test_a_closed_loop_keeps_so_many_at_a_time() -> None:
    found = await result("future", {}, concurrency=5, submitters=400)
    assert found.outcomes.succeeded == 120
    assert max(found.series.in_flight) <= 5
