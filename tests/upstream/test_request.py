"""From what the SDK sends to what vLLM gets."""

import json
from typing import Any

import pytest

from asgi_gateway.errors import Unsupported
from asgi_gateway.protocol import SampleRequest
from tests.support.recorded import sdk_samples
from tests.support.sample_request import (
    CONTEXT,
    envelope,
    made,
    refused,
    sent,
)

SENT = [pytest.param(body, id=f"{sdk}-{i}") for i, (sdk, body) in enumerate(sdk_samples())]


def refusal_of(body: dict[str, Any]) -> str | None:
    """What a recorded request asks for that no upstream of ours has."""
    for position, chunk in enumerate(body["prompt"]["chunks"]):
        if chunk["type"] != "encoded_text":
            return rf"prompt\.chunks\[{position}\] is of type '{chunk['type']}'"
    if "target_prompt_logprobs" in body:
        return "target_prompt_logprobs"
    return "prompt_alt_tokens_k" if body.get("prompt_alt_tokens_k") else None


def test_the_recordings_have_every_kind() -> None:
    refusals = [refusal_of(body) for _, body in sdk_samples()]
    assert len(refusals) == 21
    assert refusals.count(None) == 16
    assert len(set(refusals)) == 5


@pytest.mark.parametrize("body", SENT)
def test_a_request_of_a_real_sdk(body: dict[str, Any]) -> None:
    refusal = refusal_of(body)
    if refusal is not None:
        refused(body, Unsupported, refusal)
        return
    made_of = made(body)
    fields = json.loads(made_of.body)
    asked = body["sampling_params"]
    prompt = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
    assert fields["prompt"] == prompt
    assert made_of.prompt_tokens == len(prompt)
    assert fields["n"] == made_of.want.sequences == body["num_samples"]
    assert fields["max_tokens"] == asked.get("max_tokens", CONTEXT - len(prompt))
    for name in ("temperature", "top_k", "top_p"):
        assert fields[name] == asked[name]
    assert fields.get("seed") == asked.get("seed")
    assert made_of.want.prompt_logprobs == body["prompt_logprobs"]
    assert made_of.want.prompt_topk == body["topk_prompt_logprobs"]
    assert fields.get("return_token_ids", False) == (not made_of.want.named_tokens)
    assert fields.get("return_tokens_as_token_ids") or not made_of.want.named_tokens


def test_a_request_of_sdk_0_7() -> None:
    body = {
        "num_samples": 2,
        "prompt": {"chunks": [{"tokens": [5, 6]}]},
        "sampling_params": {"max_tokens": 3},
        "base_model": None,
        "model_path": None,
        "sampling_session_id": "ss-0",
        "seq_id": 0,
        "prompt_logprobs": None,
        "topk_prompt_logprobs": None,
    }
    assert sent(body) == {
        "prompt": [5, 6],
        "model": "base",
        "n": 2,
        "max_tokens": 3,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "logprobs": 0,
        "return_token_ids": True,
        "cache_salt": "salt",
    }


def test_least_and_null_are_the_same() -> None:
    least = {"sampling_session_id": "s", "seq_id": 1, "prompt": {"chunks": [{"tokens": [7]}]}}
    optional = set(SampleRequest.__struct_fields__) - set(least)
    nulls = least | dict.fromkeys(optional) | {"unknown": None, "new_field": {"a": [1]}}
    empty = least | {"sampling_params": {}}
    null = least | {"sampling_params": dict.fromkeys(["max_tokens", "seed", "stop", "temperature"])}
    assert made(least) == made(nulls) == made(empty) == made(null)
    # vLLM would take 16 tokens and the model's own generation_config.
    assert sent(least)["max_tokens"] == CONTEXT - 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("record_stability_info", True),
        ("prompt_alt_tokens_k", 1),
        ("prompt_alt_tokens_k", -1),
        ("target_prompt_logprobs", {"data": [-1, 7], "dtype": "int64", "shape": [2, 1]}),
        ("target_prompt_logprobs", {}),
        ("target_prompt_logprobs", []),
        ("target_prompt_logprobs", False),
    ],
    ids=repr,
)
def test_what_no_upstream_has_is_refused_by_name(name: str, value: Any) -> None:
    refused(envelope(**{name: value}), Unsupported, name)


def test_unsupported_features_at_their_defaults_pass() -> None:
    text = json.dumps(envelope(target="(null)")).replace('"target"', '"target_prompt_logprobs"')
    body = text.replace('"(null)"', " null ").encode()
    assert made(body) == made(envelope())


def test_names_are_escaped() -> None:
    fields = sent(envelope(), model='a"b\\c\n\u2028', cache_salt='"}]')
    assert (fields["model"], fields["cache_salt"]) == ('a"b\\c\n\u2028', '"}]')


def test_room_for_the_answer() -> None:
    plain = made(envelope(num_samples=3, sampling_params={"max_tokens": 10}))
    assert plain.reserve_bytes == 8 * 10 * 3
    rich = made(
        envelope(
            num_samples=3,
            sampling_params={"max_tokens": 10},
            topk_sample_logprobs=2,
            topk_prompt_logprobs=5,
        )
    )
    assert rich.reserve_bytes == 8 * 10 * 3 + 16 * (10 * 2 * 3 + 4 * 5)


def test_equal_shapes_are_one_object() -> None:
    asked = envelope(num_samples=3, topk_prompt_logprobs=2)
    assert made(asked).want is made(asked).want


def test_equal_requests_are_equal_bytes() -> None:
    """The digest of a resubmission is taken of them."""
    keys = envelope(num_samples=2, topk_sample_logprobs=1)
    turned = dict(reversed(keys.items()))
    assert made(keys).body == made(turned).body
    assert made(keys).body != made(keys | {"num_samples": 3}).body
