"""One seed, one load, whichever process asks."""

import msgspec
import numpy as np
import pytest

from loadgen.plan import Length, Plan
from loadgen.schedule import (
    PlanError,
    Stream,
    abandoned_after_s,
    check,
    connections,
    lengths,
    planned_s,
    source_addresses,
    uniform,
)

PLAN = Plan(scenario="test", url="http://127.0.0.1:1", samples=10_000)


def test_draws_are_fixed_for_ever() -> None:
    """A changed generator would make old seeds another load."""
    assert uniform(1, Stream.ARRIVALS, 3).tolist() == pytest.approx(
        [0.26367635287495575, 0.014622868655406494, 0.6929772319116124]
    )


def test_draws_do_not_depend_on_how_many_are_asked_for() -> None:
    assert uniform(7, Stream.PROMPTS, 10).tolist() == uniform(7, Stream.PROMPTS, 99)[:10].tolist()
    assert not np.array_equal(uniform(7, Stream.PROMPTS, 10), uniform(8, Stream.PROMPTS, 10))
    assert not np.array_equal(uniform(7, Stream.PROMPTS, 10), uniform(7, Stream.OUTPUTS, 10))


def test_draws_are_uniform() -> None:
    counts = np.histogram(uniform(3, Stream.OUTPUTS, 100_000), 10, (0, 1))[0]
    assert counts.min() > 9_600
    assert counts.max() < 10_400


def test_poisson_arrivals_have_their_rate_and_spread() -> None:
    times = planned_s(msgspec.structs.replace(PLAN, arrivals="poisson", rate=100.0))
    gaps = np.diff(times)
    assert (gaps > 0).all()
    assert times[-1] == pytest.approx(100, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_constant_arrivals_are_evenly_spaced() -> None:
    times = planned_s(msgspec.structs.replace(PLAN, arrivals="constant", rate=50.0))
    assert times[:3].tolist() == pytest.approx([0.0, 0.02, 0.04])
    assert planned_s(PLAN).tolist() == [0.0] * 10_000


def test_lengths_keep_to_their_bounds() -> None:
    plan = msgspec.structs.replace(
        PLAN,
        prompt_tokens=Length(low=3, high=5),
        output_tokens=Length(low=10, high=1000, kind="log"),
    )
    prompts, outputs = lengths(plan)
    assert np.unique(prompts).tolist() == [3, 4, 5]
    assert outputs.min() >= 10
    assert outputs.max() <= 1000
    assert np.median(outputs) == pytest.approx(100, rel=0.1)


def test_the_share_of_abandoned_polls_is_the_plans() -> None:
    plan = msgspec.structs.replace(PLAN, abandon=0.2, abandon_within_s=3.0)
    found = [abandoned_after_s(plan, sample, 0) for sample in range(10_000)]
    times = [after_s for after_s in found if after_s is not None]
    assert len(times) == pytest.approx(2_000, rel=0.1)
    assert 0 <= min(times) < 0.1
    assert 2.9 < max(times) < 3.0
    assert abandoned_after_s(plan, 5, 1) == abandoned_after_s(plan, 5, 1)
    assert all(abandoned_after_s(PLAN, sample, 0) is None for sample in range(100))


def test_batched_polls_need_few_connections_and_single_ones_many() -> None:
    batched = msgspec.structs.replace(PLAN, samples=131_072, sessions=4)
    assert connections(batched) < 1_000
    assert source_addresses(batched) == []
    single = msgspec.structs.replace(batched, style="future", processes=8, sessions=8)
    assert connections(single) > 131_072
    assert source_addresses(single)[:2] == ["127.0.1.1", "127.0.1.2"]
    assert len(source_addresses(single)) == 7


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"samples": 0}, "samples=0: must be 1 to 8,000,000"),
        ({"processes": 4}, "sessions=1: each of 4 processes needs one"),
        ({"arrivals": "poisson"}, "rate=0: poisson arrivals need samples a second"),
        ({"prompt_tokens": Length(low=2, high=9)}, "prompt_tokens=2: at least 3"),
        ({"output_tokens": Length(low=9, high=2)}, "output_tokens=9:2: must rise"),
        ({"abandon": 1.5}, "abandon=1.5: a share of polls"),
        ({"barrier": True, "concurrency": 5}, "concurrency=5: a barrier waits for all"),
        ({"submitters": 401}, "submitters=401: must be 1 to 400"),
    ],
)
def test_plans_that_cannot_be_run(fields: dict[str, object], text: str) -> None:
    check(PLAN)
    with pytest.raises(PlanError, match=text.split(":")[0]) as caught:
        check(msgspec.structs.replace(PLAN, **fields))
    assert text in str(caught.value)
