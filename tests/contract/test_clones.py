"""Sampling clients that travel to other processes: pickled, or as a handle.

Every clone counts its samples from a billion times its own number, asks for its own completions
alone, and carries the flags that the gateway gave to the process it came from.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import Supervise
from tests.contract.sdk import FUTURES, Sdk, Upstreamed, assert_right, sdk_process
from tests.support.hop import Hop, hop
from tests.support.processes import stand_in

pytestmark = pytest.mark.sdk

PER_CLONE = 10**9
JOIN, BATCHED = "client__sample_join_sampling_session", "client__sample_use_retrieve_futures"


@pytest.fixture(scope="module")
def sdk() -> Iterator[Sdk]:
    with sdk_process(*FUTURES) as running:
        yield running


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with stand_in("--delay-s", "0.1") as url:
        yield url


def batch(number: int) -> list[dict[str, Any]]:
    """Five samples that no other batch has."""
    return [{"prompt": [number, n], "params": {"max_tokens": 4, "seed": n}} for n in range(5)]


def assert_batch(found: list[dict[str, Any]], number: int) -> None:
    for answer, case in zip(found, batch(number), strict=True):
        assert_right(answer, case["prompt"], **case["params"])


def assert_apart(way: Hop) -> set[int]:
    """No poller hears of another clone's samples; returns the clones that sampled."""
    clone_of = {
        one.told()["request_id"]: one.asked()["seq_id"] // PER_CLONE for one in way.of("asample")
    }
    for poll in way.of("retrieve_futures"):
        told = [one["request_id"] for one in poll.told()["completions"]]
        asked = poll.asked()["target"]["cloned_sampler_id"]
        assert {clone_of[request_id] for request_id in told} <= {asked}
    return set(clone_of.values())


@pytest.mark.parametrize(
    ("form", "joins", "batched"),
    [
        ("pickle", True, True),
        ("handle", False, True),
        ("handle", True, False),
        ("pickle", False, False),
    ],
)
def test_a_pool_of_processes(
    sdk: Sdk, supervise: Supervise, vllm: str, tmp_path: Path, form: str, joins: bool, batched: bool
) -> None:
    """While the original goes on sampling too."""
    flags = {JOIN: joins, BATCHED: batched}
    with supervise(vllm, tmp_path, **flags) as gateway, hop(gateway.port) as way:
        before = Upstreamed(vllm)
        data = sdk.ask("carry", base_url=way.url)[form]
        sdk.ask("start", name="original", base_url=way.url, cases=batch(0))
        batches = [batch(number) for number in (1, 2, 3)]
        told = sdk.ask("pool", form=form, data=data, batches=batches, workers=2)
        assert_batch(sdk.ask("collect", name="original"), 0)
        for number, one in enumerate(told, 1):
            assert_batch(one["answers"], number)
        clones = {one["clone"] for one in told}
        assert len(clones) == 3
        if joins:
            assert clones == {1, 2, 3}
        else:
            assert min(clones) > 0
        assert len(way.of("join_sampling_session")) == (3 if joins else 0)
        assert assert_apart(way) == {0, *clones}
        assert bool(way.of("retrieve_futures")) == batched
        assert before.counts() == [1] * 20


def test_a_client_goes_on_after_its_flags_were_switched_off(
    sdk: Sdk, supervise: Supervise, vllm: str, tmp_path: Path
) -> None:
    """What is pickled skips `client/config`, so the routes of old flags stay served."""
    with supervise(vllm, tmp_path) as gateway, hop(gateway.port) as way:
        carried = sdk.ask("carry", base_url=way.url)
        way.lose("join_sampling_session")
        first = sdk.ask("sampled", form="pickle", data=carried["pickle"], cases=batch(1))
        # The number whose answer was lost is nobody's.
        assert first["clone"] == 2
        gateway.kill()
        gateway.settings |= {JOIN: False, BATCHED: False}
        gateway.start()
        polls = len(way.of("retrieve_futures"))
        with sdk_process(*FUTURES) as other:
            told = [
                other.ask("sampled", form=form, data=carried[form], cases=batch(number))
                for number, form in ((2, "pickle"), (3, "handle"))
            ]
        assert [one["clone"] for one in told] == [3, 4]
        for number, one in enumerate([first, *told], 1):
            assert_batch(one["answers"], number)
        assert len(way.of("retrieve_futures")) > polls
        # The original too; a new client is told the new flags and is a sampler of its own.
        assert_batch(sdk.ask("samples", base_url=way.url, cases=batch(0)), 0)
        assert assert_apart(way) == {0, 2, 3, 4}
        (config,) = way.of("client/config")
        assert config.told()["sample_use_retrieve_futures"] is True
        with sdk_process(*FUTURES) as new:
            carried = new.ask("carry", base_url=way.url)
            joins = len(way.of("join_sampling_session"))
            one = new.ask("sampled", form="pickle", data=carried["pickle"], cases=batch(4))
            assert_batch(one["answers"], 4)
            assert one["clone"] > 0
            assert len(way.of("join_sampling_session")) == joins
