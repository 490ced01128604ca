"""Which logprobs a sample asks an upstream for, and how their tokens are named."""

import json
from typing import Any

import pytest

from asgi_gateway.codec import Want
from tests.support.sample_request import (
    envelope,
    made,
    refused,
)


@pytest.mark.parametrize(
    ("asked", "prompt_logprobs", "want"),
    [
        ({}, None, Want()),
        ({"prompt_logprobs": None, "topk_prompt_logprobs": None}, None, Want()),
        ({"prompt_logprobs": True}, 0, Want(prompt_logprobs=True)),
        ({"topk_prompt_logprobs": 3}, 3, Want(prompt_logprobs=True, prompt_topk=3)),
        (
            {"prompt_logprobs": False, "topk_prompt_logprobs": 1},
            1,
            Want(prompt_logprobs=True, prompt_topk=1),
        ),
        (
            {"prompt_logprobs": True, "prompt_logprobs_last_n": 1},
            0,
            Want(prompt_logprobs=True, prompt_last=1),
        ),
        (
            {"topk_prompt_logprobs": 2, "prompt_logprobs_last_n": 3},
            2,
            Want(prompt_logprobs=True, prompt_topk=2, prompt_last=3),
        ),
        # The last N of a prompt of 4 are all of it.
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 4}, 0, Want(prompt_logprobs=True)),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 99}, 0, Want(prompt_logprobs=True)),
        ({"topk_sample_logprobs": 5}, None, Want(sampled_topk=5, named_tokens=True)),
        (
            {"topk_sample_logprobs": 5, "prompt_logprobs": True},
            0,
            Want(sampled_topk=5, prompt_logprobs=True),
        ),
    ],
    ids=str,
)
def test_logprobs_that_are_asked_for(
    asked: dict[str, Any], prompt_logprobs: int | None, want: Want
) -> None:
    request = made(envelope(**asked))
    fields = json.loads(request.body)
    assert request.want == want
    assert fields.get("prompt_logprobs") == prompt_logprobs
    assert ("prompt_logprobs" in fields) == (prompt_logprobs is not None)
    # The sampled token's own is always asked for; ids as keys only where there are alternatives.
    assert fields["logprobs"] == want.sampled_topk
    assert fields.get("return_tokens_as_token_ids", False) == bool(want.sampled_topk)
    assert fields.get("return_token_ids", False) == (not want.named_tokens)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "named"),
    [(1, 1, False), (4, 1, False), (20, 1, True), (3000, 1, True), (3000, 1000, False)],
)
def test_the_prompt_is_not_echoed_where_names_are_surely_smaller(
    prompt_tokens: int, max_tokens: int, named: bool
) -> None:
    for samples in (1, 8):
        chunks = [{"tokens": [7] * prompt_tokens, "type": "encoded_text"}]
        asked = envelope(
            prompt={"chunks": chunks},
            sampling_params={"max_tokens": max_tokens},
            num_samples=samples,
        )
        request = made(asked)
        fields = json.loads(request.body)
        assert request.want == Want(sequences=samples, named_tokens=named)
        assert fields.get("return_token_ids") == (None if named else True)
        assert fields.get("return_tokens_as_token_ids") == (True if named else None)
        # Prompt scores are matched with the prompt's ids.
        scored = json.loads(made(asked | {"prompt_logprobs": True}).body)
        assert scored["return_token_ids"] is True


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 0}, "prompt_logprobs_last_n"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": -1}, "prompt_logprobs_last_n"),
        ({"prompt_logprobs_last_n": 2}, "prompt_logprobs_last_n"),
        ({"topk_prompt_logprobs": -1}, "topk_prompt_logprobs"),
        ({"topk_prompt_logprobs": 10**9}, "topk_prompt_logprobs"),
        ({"topk_prompt_logprobs": True}, "topk_prompt_logprobs"),
        ({"topk_sample_logprobs": -1}, "topk_sample_logprobs"),
        ({"topk_sample_logprobs": 10**9}, "topk_sample_logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_logprobs": "yes"}, "prompt_logprobs"),
    ],
    ids=str,
)
def test_logprobs_that_cannot_be(asked: dict[str, Any], name: str) -> None:
    refused(envelope(**asked), match=name)
