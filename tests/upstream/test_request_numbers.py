"""Sampling parameters that are numbers: their ranges, and what is sent where they are absent."""

import json
from typing import Any

import pytest

from tests.support.sample_request import (
    CONTEXT,
    TOP,
    envelope,
    params,
    refused,
    sent,
)


@pytest.mark.parametrize("seed", [42, 0, -1, 2**63 - 1, -(2**63)])
def test_a_seed_arrives_as_given(seed: int) -> None:
    assert sent(params(seed=seed))["seed"] == seed


def test_no_seed_is_invented() -> None:
    assert "seed" not in sent(params())
    assert "seed" not in sent(params(seed=None))


def test_a_seed_with_several_samples_is_vllms_to_spread() -> None:
    fields = sent(envelope(num_samples=4, sampling_params={"seed": 7, "max_tokens": 1}))
    assert (fields["n"], fields["seed"]) == (4, 7)


NUMBERS: dict[str, tuple[list[Any], list[Any]]] = {
    "seed": ([], [2**63, -(2**63) - 1, 10**30, "1", 1.5, True, [1]]),
    "temperature": ([0, 0.0, 1e-9, 0.7, 1, 2, 2.0], [-0.1, 2.1, 1e300, "1", True, [1]]),
    "top_p": ([1, 1.0, 0.5, 1e-9], [0, 0.0, -0.5, 1.1, 1e300, "1", True]),
    "top_k": ([-1, 0, 1, 50, TOP], [-2, 2**31, 10**30, 1.5, "5", True]),
    "max_tokens": ([1, 2, CONTEXT - 4], [0, -1, CONTEXT - 3, 2**31, 10**30, 1.5, "5", True]),
}
GOOD = [(name, value) for name, (good, _) in NUMBERS.items() for value in good]
BAD = [(name, value) for name, (_, bad) in NUMBERS.items() for value in bad]


@pytest.mark.parametrize(("name", "value"), GOOD, ids=repr)
def test_a_number_in_range_is_sent_as_it_is(name: str, value: Any) -> None:
    assert sent(params(**{name: value}))[name] == value


@pytest.mark.parametrize(("name", "value"), BAD, ids=repr)
def test_a_number_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    text = refused(params(**{name: value}), match=name)
    if type(value) is int and value != 10**30:
        assert str(value) in text


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5000])
def test_a_number_that_json_or_floats_have_not_is_refused(name: str, value: str) -> None:
    body = json.dumps(params(**{name: "(here)"})).replace('"(here)"', value).encode()
    refused(body)


def test_everything_the_models_own_config_would_fill_in_is_sent() -> None:
    fields = sent(envelope(sampling_params={}))
    assert (fields["temperature"], fields["top_p"], fields["top_k"]) == (1.0, 1.0, -1)
    assert fields["max_tokens"] == CONTEXT - 4
    # vllm-router answers 422 to a boolean here.
    assert type(fields["logprobs"]) is int
