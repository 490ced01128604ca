"""A prompt and the tokens asked for fit in the model's context, or are refused."""

from typing import Any

import pytest

from tests.support.sample_request import (
    envelope,
    refused,
    sent,
)


def long_prompt(tokens: int, max_tokens: int | None) -> dict[str, Any]:
    prompt = {"chunks": [{"tokens": list(range(tokens))}]}
    return envelope(prompt=prompt, sampling_params={"max_tokens": max_tokens})


@pytest.mark.parametrize(
    ("prompt", "asked", "numbers"),
    [
        (4000, 97, ["4000", "97", "4096"]),
        (4096, 1, ["4096", "1", "4096"]),
        (5000, 1, ["5000", "1", "4096"]),
        (4096, None, ["4096", "no max_tokens", "4096"]),
        (4, 4_000_000_000, ["4", "4000000000", "4096"]),
    ],
)
def test_what_does_not_fit_is_refused_with_three_numbers(
    prompt: int, asked: int | None, numbers: list[str]
) -> None:
    text = refused(long_prompt(prompt, asked), match="context")
    for number in numbers:
        assert number in text


@pytest.mark.parametrize(
    ("prompt", "asked", "sends"),
    [(4000, 96, 96), (4000, None, 96), (4095, None, 1), (4095, 1, 1), (1, None, 4095)],
)
def test_what_fits_just_fits(prompt: int, asked: int | None, sends: int) -> None:
    assert sent(long_prompt(prompt, asked))["max_tokens"] == sends


def test_an_unknown_context() -> None:
    assert sent(long_prompt(5000, 70_000), max_context=None)["max_tokens"] == 70_000
    refused(long_prompt(5, None), match="max_tokens is needed", max_context=None)
    refused(long_prompt(5, 2**31), match="max_tokens is 2147483648", max_context=None)
    refused(long_prompt(5, 0), match="max_tokens is 0", max_context=None)
