"""Stored wire bytes -> the JSON result that SDKs below 0.25 read. Off the hot path.

Shape: `{"type": "sample", "sequences": [{"stop_reason", "tokens", "logprobs"}], "prompt_logprobs"?,
"topk_prompt_logprobs"?, "prompt_cache_hit_tokens"?}`. NaN, which JSON has not, is null; logprobs
are the stored float32 values to the last digit, the numbers that the protobuf form gives.
"""

from typing import Any

import msgspec
import numpy as np

from asgi_gateway.codec import PAD_LOGPROB, PAD_TOKEN, StopReason
from asgi_gateway.codec import sampling_pb2 as wire


def as_json(result: bytes) -> bytes:
    """The JSON form of a serialized SampleResponse."""
    message = wire.SampleResponse.FromString(result)
    body: dict[str, Any] = {
        "type": "sample",
        "sequences": [_sequence(sequence) for sequence in message.sequences],
    }
    if message.HasField("prompt_logprobs"):
        body["prompt_logprobs"] = _floats(message.prompt_logprobs)
    if message.HasField("topk_prompt_logprobs"):
        body["topk_prompt_logprobs"] = _topk(message.topk_prompt_logprobs)
    if message.prompt_cache_hit_tokens:
        body["prompt_cache_hit_tokens"] = message.prompt_cache_hit_tokens
    return msgspec.json.encode(body)


def _sequence(sequence: wire.SampledSequence) -> dict[str, Any]:
    body: dict[str, Any] = {
        "stop_reason": StopReason(sequence.stop_reason).name.lower(),
        "tokens": np.frombuffer(sequence.tokens, "<i4").tolist(),
        "logprobs": _floats(sequence.logprobs),
    }
    if sequence.HasField("topk_sampled_logprobs"):
        body["topk_logprobs"] = _topk(sequence.topk_sampled_logprobs)
    return body


def _floats(raw: bytes) -> list[float | None]:
    """Float32 values as Python floats, NaN as None."""
    values: list[float] = np.frombuffer(raw, "<f4").tolist()
    return [None if value != value else value for value in values]


def _topk(topk: wire.TopkLogprobs) -> list[list[tuple[int, float]] | None]:
    """Rows of (token, logprob) without their padding; a row of padding alone is None."""
    tokens = np.frombuffer(topk.token_ids, "<i4").reshape(topk.length, topk.k)
    logprobs = np.frombuffer(topk.logprobs, "<f4").reshape(topk.length, topk.k)
    rows: list[list[tuple[int, float]] | None] = []
    for row_tokens, row_logprobs in zip(tokens, logprobs, strict=True):
        cells = [
            (int(token), float(logprob))
            for token, logprob in zip(row_tokens, row_logprobs, strict=True)
            if not (token == PAD_TOKEN and logprob == np.float32(PAD_LOGPROB))
        ]
        rows.append(cells or None)
    return rows
