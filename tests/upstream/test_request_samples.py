"""Several samples of one prompt: greedy ones are as many prompts, within bounds."""

import json
import tracemalloc
from typing import Any

import pytest

from asgi_gateway.upstream import prompt
from tests.support.sample_request import (
    envelope,
    made,
    refused,
    sent,
)


@pytest.mark.parametrize("temperature", [0, 0.0, 9.9e-6])
@pytest.mark.parametrize("n", [2, 5])
def test_greedy_samples_are_as_many_prompts(temperature: float, n: int) -> None:
    """vLLM refuses n above 1 with greedy sampling."""
    request = made(
        envelope(num_samples=n, sampling_params={"temperature": temperature, "max_tokens": 3})
    )
    fields = json.loads(request.body)
    assert fields["prompt"] == [[1, 2, 3, 4]] * n
    assert fields["n"] == 1
    assert request.want.sequences == n
    assert request.prompt_tokens == 4
    assert request.reserve_bytes == 8 * 3 * n


@pytest.mark.parametrize(("temperature", "n"), [(0, 1), (1e-5, 2), (0.5, 3)])
def test_other_samples_are_one_prompt(temperature: float, n: int) -> None:
    fields = sent(
        envelope(num_samples=n, sampling_params={"temperature": temperature, "max_tokens": 3})
    )
    assert (fields["prompt"], fields["n"]) == ([1, 2, 3, 4], n)


def greedy(n: int, tokens: int) -> dict[str, Any]:
    prompt = {"chunks": [{"tokens": [100_000] * tokens}]}
    return envelope(
        num_samples=n, prompt=prompt, sampling_params={"temperature": 0, "max_tokens": 1}
    )


def test_repeating_a_prompt_does_not_make_gigabytes() -> None:
    assert len(sent(greedy(prompt.MAX_PROMPTS, 1))["prompt"]) == 1024
    refused(greedy(prompt.MAX_PROMPTS + 1, 1), match="num_samples is 1025")
    tracemalloc.start()
    try:
        text = refused(greedy(1000, 50_000), match="num_samples is 1000", max_context=None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(prompt.MAX_REPEATED_BYTES) in text
    assert peak < 16 << 20


@pytest.mark.parametrize("n", [0, -1, 16_385, 2**31, 10**30, 1.5, "2", True])
def test_a_number_of_samples_that_cannot_be(n: Any) -> None:
    refused(envelope(num_samples=n), match="num_samples")


@pytest.mark.parametrize("n", [None, 1, 16_384])
def test_a_number_of_samples_that_can_be(n: int | None) -> None:
    request = made(envelope(num_samples=n))
    assert json.loads(request.body)["n"] == request.want.sequences == (n or 1)
