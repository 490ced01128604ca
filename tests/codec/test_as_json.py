"""JSON results against what the SDK's decoder reads from the same protobuf bytes."""

from typing import Any

import msgspec
import numpy as np
import pytest
from tinker.proto.response_conv import deserialize_sample_response

from asgi_gateway.codec import SampleArrays, Sequence, StopReason, Want
from asgi_gateway.codec.as_json import as_json
from asgi_gateway.codec.decode import Decoder
from asgi_gateway.codec.encode import encode
from tests.support.recorded import recordings


def read(result: bytes) -> Any:
    return msgspec.json.decode(as_json(result))


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("completion_n4_16tok", Want(sequences=4)),
        ("completion_512tok_logprobs0_ids_astokenids", Want(sampled_topk=2)),
        ("completion_prompt_logprobs5", Want(prompt_logprobs=True, prompt_topk=5)),
    ],
    ids=str,
)
def test_numbers_are_those_of_the_protobuf_form(name: str, want: Want) -> None:
    one = recordings()[name]
    result = encode(Decoder().decode(one.body, want, one.prompt_tokens))
    told, right = read(result), deserialize_sample_response(result)
    for got, sequence in zip(told["sequences"], right.sequences, strict=True):
        assert (got["tokens"], got["logprobs"]) == (sequence.tokens, sequence.logprobs)
        assert got["stop_reason"] == sequence.stop_reason
        assert pairs(got.get("topk_logprobs")) == sequence.topk_logprobs
    assert told.get("prompt_logprobs") == right.prompt_logprobs
    assert pairs(told.get("topk_prompt_logprobs")) == right.topk_prompt_logprobs


def pairs(rows: Any) -> Any:
    """Tuples are lists in JSON."""
    return rows and [row and [tuple(cell) for cell in row] for row in rows]


def test_what_is_no_number_is_null() -> None:
    logprobs = np.array([-1.1, np.nan], np.float32)
    sequence = Sequence(StopReason.LENGTH, np.array([1, 2], np.int32), logprobs)
    [got] = read(encode(SampleArrays((sequence,))))["sequences"]
    assert got["logprobs"] == [float(np.float32(-1.1)), None]
