"""Answers that are lost on their way: the real SDK asks again, and nothing is run twice.

A hop between the SDK and the gateway lets a request through and closes the connection instead of
carrying its answer back.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.contract.conftest import Start
from tests.contract.sdk import (
    FUTURES,
    Sdk,
    Upstreamed,
    assert_right,
    metrics,
    sdk_process,
    wait_until,
)
from tests.support.hop import Crossed, Hop, hop
from tests.support.processes import Served, stand_in

pytestmark = pytest.mark.sdk


@pytest.fixture(scope="module")
def sdk() -> Iterator[Sdk]:
    with sdk_process(*FUTURES) as running:
        yield running


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with stand_in("--delay-s", "0.2") as url:
        yield url


@pytest.fixture(scope="module", params=["batched", "single"])
def gateway(
    request: pytest.FixtureRequest,
    start: Start,
    vllm: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    settings = {"client__sample_use_retrieve_futures": request.param == "batched"}
    state = tmp_path_factory.mktemp("state")
    with start(vllm, state__dir=state, **settings) as served:
        yield served
        assert "Traceback" not in served.process.stderr


@pytest.fixture
def way(gateway: Served) -> Iterator[Hop]:
    with hop(gateway.port) as running:
        yield running


def cases(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": [n, 3], "n": 2, "params": {"max_tokens": 4, "seed": n}} for n in range(count)
    ]


def sample(sdk: Sdk, way: Hop, count: int) -> list[dict[str, Any]]:
    """Samples that must be right, whatever is lost."""
    found: list[dict[str, Any]] = sdk.ask("samples", base_url=way.url, cases=cases(count))
    for answer, case in zip(found, cases(count), strict=True):
        assert_right(answer, case["prompt"], n=case["n"], **case["params"])
    return found


def samples_held(gateway: Served) -> float:
    return metrics(gateway.url)["asgi_gateway_samples_held"]


def acknowledged(way: Hop) -> set[str]:
    """Ids of all results that the SDK says it has."""
    polls = way.of("retrieve_futures")
    return {id_ for one in polls for id_ in one.asked()["retrieved_request_ids"]}


def by(key: str, crossed: list[Crossed]) -> list[list[Crossed]]:
    """Repeats of one request together."""
    groups = defaultdict(list)
    for one in crossed:
        groups[one.asked()[key]].append(one)
    return list(groups.values())


def test_a_submit_whose_answer_is_lost_runs_once(
    sdk: Sdk, gateway: Served, vllm: str, way: Hop
) -> None:
    sample(sdk, way, 1)
    before, submits = Upstreamed(vllm), len(way.of("asample"))
    way.lose("asample", times=3)
    found = sample(sdk, way, 6)
    submitted = by("seq_id", way.of("asample")[submits:])
    assert sorted(len(group) for group in submitted) == [1, 1, 1, 2, 2, 2]
    told = set()
    for group in submitted:
        assert [one.lost for one in group] == [True, False][-len(group) :]
        assert len({one.body for one in group}) == 1
        assert len({one.answer for one in group}) == 1
        told |= set(group[0].told()["sample_sequence_ids"])
    assert told == {one["sequence_id"] for answer in found for one in answer["sequences"]}
    assert before.counts() == [1] * 6


def test_a_result_whose_answer_is_lost_is_given_again(
    sdk: Sdk, gateway: Served, vllm: str, way: Hop
) -> None:
    before = Upstreamed(vllm)
    way.lose("retrieve_future", times=3)
    sample(sdk, way, 4)
    for group in by("request_id", way.of("retrieve_future")):
        assert {one.status for one in group} == {200}
        assert len({one.answer for one in group}) == 1
        assert [one.lost for one in group].count(False) == 1
    assert sum(one.lost for one in way.of("retrieve_future")) == 3
    assert before.counts() == [1] * 4


@pytest.mark.parametrize("gateway", ["batched"], indirect=True)
def test_lost_completions_are_told_again_and_lost_acknowledgements_repeated(
    sdk: Sdk, gateway: Served, vllm: str, way: Hop
) -> None:
    before, held = Upstreamed(vllm), samples_held(gateway)
    way.lose("retrieve_futures", times=2)
    sample(sdk, way, 4)
    # The completions, then the acknowledgements of what was fetched.
    way.lose("retrieve_futures", times=1)
    sample(sdk, way, 4)
    # An acknowledgement goes with the next poll, after the SDK's own pause where one was lost.
    ids = {one.told()["request_id"] for one in way.of("asample")}
    wait_until(lambda: acknowledged(way) >= ids, within_s=60)
    # Those of a test before, whose way was gone before they were acknowledged, may still be held.
    # Of several gateways the one that ran a sample has it for a moment longer.
    wait_until(lambda: samples_held(gateway) <= held, within_s=30)
    assert before.counts() == [1] * 8
    polls = way.of("retrieve_futures")
    assert sum(one.lost for one in polls) == 3
    for lost, repeated in pairwise(polls):
        if lost.lost:
            # A page with more in it, where more had settled meanwhile.
            assert lost.asked()["prev_cursor"] == repeated.asked()["prev_cursor"]
            told = [one.told()["completions"] for one in (lost, repeated)]
            assert told[1][: len(told[0])] == told[0]
    assert acknowledged(way) == ids


def test_every_answer_may_be_lost_once(sdk: Sdk, gateway: Served, vllm: str, way: Hop) -> None:
    """From the first one of a ServiceClient to its last."""
    before = Upstreamed(vllm)
    handshake = ("client/config", "client/dynamic_config", "create_session")
    way.lose(*handshake, "create_sampling_session", "asample", "retrieve_future")
    way.lose("retrieve_futures")
    sample(sdk, way, 2)
    (session_id,) = {one.asked()["session_id"] for one in way.of("create_sampling_session")}
    way.lose(f"sessions/{session_id}/finish")
    assert sdk.ask("close", base_url=way.url) == {}
    assert before.counts() == [1] * 2
    made = [one.told()["sampling_session_id"] for one in way.of("create_sampling_session")]
    assert len(made) == 2
    assert len(set(made)) == 1
    lost = {one.path.replace(session_id, "ID") for one in way.crossed if one.lost}
    assert {*handshake, "create_sampling_session", "asample", "retrieve_future"} < lost
    assert "sessions/ID/finish" in lost
