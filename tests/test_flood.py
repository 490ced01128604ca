"""The flood in small, on real sockets: everything in flight at once, delivered exactly once.

`make flood` runs the full one of 131,072 samples.
"""

from array import array

from loadgen import answers
from loadgen.sampling_pb2 import (
    STOP_REASON_LENGTH,
    STOP_REASON_STOP,
    SampledSequence,
    SampleResponse,
    StopReason,
)
from tests.support.flood.ledger import Ledger, Outcome
from tests.support.flood.report import DESCRIPTORS_CAP, Report, faults, table
from tests.support.flood.run import Plan, run
from tests.support.flood.samples import Samples


def passed(report: Report) -> Report:
    assert not report.faults, table(report)
    return report


async def test_two_thousand_samples_of_two_sessions_twice() -> None:
    report = passed(await run(Plan(samples=2_000, sessions=2, cycles=2, hold_s=0.1)))
    for cycle in report.cycles:
        assert cycle.in_flight_max == cycle.outcomes["delivered"] == 2_000
        assert cycle.tally.acknowledged == cycle.upstream.ids == 2_000
        assert cycle.tally.polls < 1_000
    assert report.gateway["charged_bytes"] == report.gateway["results_held_bytes"] == 0
    assert max(report.descriptors.values()) < DESCRIPTORS_CAP
    assert "all delivered exactly once" in table(report)


async def test_interrupted_samples_are_submitted_again_and_a_full_gateway_is_waited_for() -> None:
    plan = Plan(
        samples=400,
        sessions=2,
        cycles=1,
        barrier=False,
        delay_s=1.0,  # longer than 300 submits take
        fault_every=10,
        settings={"store.max_in_flight": "300"},
        within_s=30.0,
    )
    (cycle,) = passed(await run(plan)).cycles
    assert cycle.tally.resubmitted == 40
    assert cycle.upstream.ids == 440
    assert cycle.tally.submits_429 > 0


async def test_what_is_never_answered_is_lost() -> None:
    plan = Plan(samples=10, sessions=1, cycles=2, barrier=False, delay_s=60.0, within_s=1.0)
    report = await run(plan)
    assert [cycle.outcomes["lost"] for cycle in report.cycles] == [10]
    assert "cycle 1: 10 lost" in report.faults
    assert "not delivered exactly once" in table(report)


def test_the_ledger_counts_each_sample_once() -> None:
    ledger = Ledger(3)
    for number, request_id in ((0, "a"), (1, "b"), (2, "b")):
        ledger.accepted(number, request_id)
    ledger.settle(0, Outcome.DELIVERED)
    ledger.settle(0, Outcome.DELIVERED)
    ledger.settle(1, Outcome.WRONG, "its tokens are another sample's")
    outcomes = ledger.outcomes()
    assert (outcomes["delivered"], outcomes["wrong"], outcomes["lost"]) == (1, 1, 1)
    assert (ledger.delivered_again, ledger.shared_ids) == (1, 1)
    assert not ledger.all_settled.is_set()
    view = ledger.upstream_view({"a": 2, "c": 1})
    assert (view.doubled, view.missing, view.ids) == (1, 1, 2)


def test_a_wrong_result_is_seen() -> None:
    samples = Samples(prompt_tokens=4, max_tokens=3)
    prompt = [1_007, 1_000, 1_000, 8_919]
    ids = array("i", answers.tokens(prompt, count=3)).tobytes()
    logprobs = array("f", answers.logprobs(prompt, count=3)).tobytes()

    def result(tokens: bytes, logprobs: bytes, reason: StopReason = STOP_REASON_LENGTH) -> bytes:
        sequence = SampledSequence(stop_reason=reason, tokens=tokens, logprobs=logprobs)
        return SampleResponse(sequences=[sequence]).SerializeToString()

    assert samples.fault(7, result(ids, logprobs)) is None
    assert samples.fault(8, result(ids, logprobs)) == "its tokens are another sample's"
    assert samples.fault(7, result(ids, logprobs[4:])) == "its logprobs are wrong"
    assert samples.fault(7, result(ids, logprobs, STOP_REASON_STOP)) == "its stop reason is 0"
    assert samples.fault(7, b"") == "it has 0 sequences"
    assert samples.fault(7, b"\xff") == "it is no SampleResponse"


def test_bounds_are_judged() -> None:
    found = faults([], {"bugs_total": 1.0}, {"gateway": 20_001}, all_at_once=True)
    assert found == ["the gateway counted 1 bugs_total", "20001 descriptors in the gateway"]
