"""Results: our bytes are the protobuf library's, the SDK reads the values, JSON says the same."""

import json
import math
from random import Random
from typing import Any

import numpy as np

from asgi_gateway.codec import SampleArrays, Sequence, StopReason, Topk
from asgi_gateway.codec import sampling_pb2 as wire
from asgi_gateway.codec.as_json import as_json
from asgi_gateway.codec.encode import encode
from tests.fuzz.target import Target

_LENGTHS = (*range(20), 31, 32, 63, 64, 65, 100, 127, 128, 1024, 1025)
_SPECIAL = (0.0, -0.0, -99999.0, -9999.0, 1e-45, -3.4028234e38, math.nan)


class Results(Target):
    """A case is the number that the arrays are made of."""

    name = "results"
    share = 0.04

    def make(self, rng: Random) -> bytes:
        return b"%d" % rng.getrandbits(60)

    def check(self, case: bytes) -> str:
        # Imported where it is used: it takes a second.
        from tinker.proto.response_conv import deserialize_sample_response

        arrays = _arrays(Random(int(case)))
        result = encode(arrays)
        library = _message(arrays)
        assert result == library.SerializeToString(deterministic=True)
        assert wire.SampleResponse.FromString(result) == library
        theirs: Any = deserialize_sample_response(result)
        assert len(theirs.sequences) == len(arrays.sequences)
        shown = json.loads(as_json(result))["sequences"]
        for sequence, read, told in zip(arrays.sequences, theirs.sequences, shown, strict=True):
            assert list(read.tokens) == told["tokens"] == sequence.tokens.tolist()
            right = sequence.logprobs
            given = [] if read.logprobs is None else read.logprobs  # of no token at all
            assert np.array_equal(np.asarray(given, np.float32), right, equal_nan=True)
            plain = [None if value != value else value for value in right.tolist()]
            assert told["logprobs"] == plain
            assert told["stop_reason"] == read.stop_reason == sequence.stop_reason.name.lower()
        kinds = ["prompt" if arrays.prompt_logprobs is not None else ""]
        kinds += ["top-k" if any(s.topk is not None for s in arrays.sequences) else ""]
        return " ".join(filter(None, kinds)) or "plain"


def _arrays(rng: Random) -> SampleArrays:
    sequences = tuple(_sequence(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 5))))
    prompt, topk = None, None
    if rng.random() < 0.3:
        length = rng.choice(_LENGTHS)
        prompt = _floats(rng, length)
        topk = _topk(rng, length) if rng.random() < 0.5 else None
    hits = rng.choice((0, 0, 1, 127, 128, 16_384, 2**31 - 1))
    return SampleArrays(sequences, prompt, topk, hits)


def _sequence(rng: Random) -> Sequence:
    length = rng.choice(_LENGTHS) if rng.random() < 0.7 else rng.randrange(70)
    tokens = _numbers(rng).integers(0, rng.choice((10, 2**31 - 1)), length, np.int32, endpoint=True)
    logprobs = _floats(rng, length)
    reason = rng.choice(list(StopReason))
    if rng.random() < 0.3:
        return Sequence(reason, tokens, logprobs, _topk(rng, length))
    if length <= 64 and rng.random() < 0.5:
        return Sequence(reason, tokens.tobytes(), logprobs.tobytes())
    return Sequence(reason, tokens, logprobs)


def _topk(rng: Random, length: int) -> Topk:
    k = rng.choice((1, 2, 5))
    tokens = _numbers(rng).integers(0, 200_000, (length, k), np.int32)
    return Topk(tokens, _floats(rng, length * k).reshape(length, k))


def _floats(rng: Random, length: int) -> Any:
    values = -_numbers(rng).exponential(3.0, length).astype(np.float32)
    for _ in range(min(length, rng.randrange(4))):
        values[rng.randrange(length)] = rng.choice(_SPECIAL)
    return values


def _numbers(rng: Random) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(rng.getrandbits(64)))


def _message(arrays: SampleArrays) -> wire.SampleResponse:
    message = wire.SampleResponse(prompt_cache_hit_tokens=arrays.prompt_cache_hit_tokens)
    for sequence in arrays.sequences:
        one = message.sequences.add()
        one.stop_reason = int(sequence.stop_reason)  # type: ignore[assignment]
        one.tokens, one.logprobs = sequence.tokens.tobytes(), sequence.logprobs.tobytes()
        if sequence.topk is not None:
            one.topk_sampled_logprobs.CopyFrom(_table(sequence.topk))
    if arrays.prompt_logprobs is not None:
        message.prompt_logprobs = arrays.prompt_logprobs.tobytes()
    if arrays.prompt_topk is not None:
        message.topk_prompt_logprobs.CopyFrom(_table(arrays.prompt_topk))
    return message


def _table(topk: Topk) -> wire.TopkLogprobs:
    length, k = topk.tokens.shape
    return wire.TopkLogprobs(
        token_ids=topk.tokens.tobytes(), logprobs=topk.logprobs.tobytes(), k=k, length=length
    )
