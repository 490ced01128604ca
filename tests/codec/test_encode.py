"""Encoding, against the protobuf library byte for byte and against the SDK's own decoder."""

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from tinker.lib.public_interfaces.sampling_client import (
    _check_prompt_logprobs_last_n_honored as check_last_n_honored,
)
from tinker.proto.response_conv import deserialize_sample_response

from asgi_gateway.codec import (
    FEW,
    PAD_LOGPROB,
    PAD_TOKEN,
    Float32s,
    Int32s,
    SampleArrays,
    Sequence,
    StopReason,
    Topk,
    Want,
)
from asgi_gateway.codec import sampling_pb2 as wire
from asgi_gateway.codec.decode import Decoder
from asgi_gateway.codec.encode import encode
from tests.codec import bodies
from tests.codec.reference import PADDING, Sampled, expected
from tests.support.recorded import recordings

# Around the sizes where a length takes one more byte as a varint: 128 and 16,384 bytes.
LENGTHS = (0, 1, 2, 15, 16, 31, 32, 33, 2047, 2048, 4095, 4096, 4097)
LONG = 524_288  # 2 MiB of each array: a fourth byte

REASONS = {
    StopReason.STOP: wire.STOP_REASON_STOP,
    StopReason.LENGTH: wire.STOP_REASON_LENGTH,
}


def by_library(arrays: SampleArrays) -> bytes:
    """The same values through the protobuf library."""
    message = wire.SampleResponse(prompt_cache_hit_tokens=arrays.prompt_cache_hit_tokens)
    for one in arrays.sequences:
        entry = message.sequences.add()
        entry.stop_reason = REASONS[one.stop_reason]
        entry.tokens = one.tokens.astype("<i4").tobytes()
        entry.logprobs = one.logprobs.astype("<f4").tobytes()
        if one.topk is not None:
            _fill(entry.topk_sampled_logprobs, one.topk)
    if arrays.prompt_logprobs is not None:
        message.prompt_logprobs = arrays.prompt_logprobs.astype("<f4").tobytes()
    if arrays.prompt_topk is not None:
        _fill(message.topk_prompt_logprobs, arrays.prompt_topk)
    return message.SerializeToString()


def _fill(table: wire.TopkLogprobs, topk: Topk) -> None:
    table.SetInParent()
    table.length, table.k = topk.tokens.shape
    table.token_ids = topk.tokens.astype("<i4").tobytes()
    table.logprobs = topk.logprobs.astype("<f4").tobytes()


def ints(*values: int) -> Int32s:
    return np.array(values, np.int32)


def floats(*values: float) -> Float32s:
    return np.array(values, np.float32)


def table(k: int, *rows: list[tuple[int, float]]) -> Topk:
    """Rows of (token, logprob), padded to k."""
    cells = [row + [(PAD_TOKEN, PAD_LOGPROB)] * (k - len(row)) for row in rows]
    return Topk(
        np.array([[token for token, _ in row] for row in cells], np.int32).reshape(len(rows), k),
        np.array([[value for _, value in row] for row in cells], np.float32).reshape(len(rows), k),
    )


def ramp(length: int) -> Sequence:
    tokens = (np.arange(length) * 7919 % 151_936).astype(np.int32)
    return Sequence(StopReason.LENGTH, tokens, (tokens / -10_000).astype(np.float32))


# --- every byte ----------------------------------------------------------------------------------

token_ids = st.integers(0, 2**31 - 1)
float32s = st.floats(width=32, allow_nan=True, allow_infinity=True)


@st.composite
def topks(draw: st.DrawFn, length: int | None = None) -> Topk:
    rows = draw(st.integers(0, 40)) if length is None else length
    shape = (rows, draw(st.integers(0, 20)))
    return Topk(
        draw(npst.arrays(np.int32, shape, elements=token_ids)),
        draw(npst.arrays(np.float32, shape, elements=float32s)),
    )


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    length = draw(st.integers(0, 200))
    return Sequence(
        draw(st.sampled_from(StopReason)),
        draw(npst.arrays(np.int32, length, elements=token_ids)),
        draw(npst.arrays(np.float32, length, elements=float32s)),
        draw(st.none() | topks(length)),
    )


answers = st.builds(
    SampleArrays,
    sequences=st.lists(sequences(), max_size=5).map(tuple),
    prompt_logprobs=st.none() | npst.arrays(np.float32, st.integers(0, 200), elements=float32s),
    prompt_topk=st.none() | topks(),
    prompt_cache_hit_tokens=st.integers(0, 2**31 - 1),
)


@given(answers)
@example(SampleArrays(()))
@example(SampleArrays((), prompt_logprobs=floats(), prompt_topk=table(0)))
@example(SampleArrays((ramp(0),), prompt_logprobs=floats(math.nan), prompt_topk=table(3, [])))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_bytes_are_the_librarys(arrays: SampleArrays) -> None:
    assert encode(arrays) == by_library(arrays)


@pytest.mark.parametrize("length", [*LENGTHS, LONG])
def test_the_bytes_are_the_librarys_at_every_width_of_a_length(length: int) -> None:
    one = ramp(length)
    rows = min(length, 4097)
    topk = Topk(
        np.arange(rows * 3, dtype=np.int32).reshape(rows, 3),
        np.arange(rows * 3, dtype=np.float32).reshape(rows, 3),
    )
    arrays = SampleArrays((one,), one.logprobs, topk, length)
    assert encode(arrays) == by_library(arrays)


@pytest.mark.parametrize("hits", [0, 1, 127, 128, 16_383, 16_384, 2**21, 2**28, 2**31 - 1])
def test_cache_hits(hits: int) -> None:
    arrays = SampleArrays((ramp(1),), prompt_cache_hit_tokens=hits)
    assert encode(arrays) == by_library(arrays)
    assert deserialize_sample_response(encode(arrays)).prompt_cache_hit_tokens == hits


@pytest.mark.parametrize("reason", StopReason)
@pytest.mark.parametrize("length", [*range(FEW + 3), 127, 2000])
def test_bytes_are_what_arrays_of_them_are(length: int, reason: StopReason) -> None:
    one = ramp(length)
    held = Sequence(reason, one.tokens.tobytes(), one.logprobs.tobytes())
    assert held.tokens.dtype.str == "<i4"
    assert held.logprobs.dtype.str == "<f4"
    arrays = SampleArrays((held, Sequence(reason, one.tokens, one.logprobs), held))
    assert encode(arrays) == by_library(arrays)
    for odd in (
        Sequence(reason, held.tokens, held.held_logprobs),
        Sequence(reason, held.held_tokens, held.logprobs),
        Sequence(reason, held.held_tokens, held.logprobs[1:].tobytes()),
        Sequence(reason, held.held_tokens, held.held_logprobs, table(0)),
    ):
        assert encode(SampleArrays((odd,))) == by_library(SampleArrays((odd,)))


def test_arrays_that_are_views_of_others() -> None:
    wide = np.arange(40, dtype=np.int32)
    values = np.arange(40, dtype=np.float32)
    one = Sequence(
        StopReason.STOP,
        wide[::2],
        values[::-2],
        Topk(wide.reshape(2, 20).T, values.reshape(2, 20).T),
    )
    strided = Topk(wide.reshape(8, 5)[::2, 1:3], values.reshape(8, 5)[::2, 1:3])
    arrays = SampleArrays((one,), values[1::3], strided)
    assert encode(arrays) == by_library(arrays)


def test_what_was_encoded_does_not_follow_the_arrays() -> None:
    one = ramp(100)
    result = encode(SampleArrays((one,)))
    before = bytes(result)
    one.tokens[:] = 0
    assert result == before
    assert type(result) is bytes


# --- the SDK's decoder ---------------------------------------------------------------------------


def same(left: list[Any] | None, right: list[Any] | None) -> bool:
    """Equal lists, NaN equal to NaN."""
    return repr(left) == repr(right)


@given(answers)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_sdk_reads_what_was_written(arrays: SampleArrays) -> None:
    response = deserialize_sample_response(encode(arrays))
    assert len(response.sequences) == len(arrays.sequences)
    for read, written in zip(response.sequences, arrays.sequences, strict=True):
        assert read.stop_reason == written.stop_reason.name.lower()
        assert read.tokens == written.tokens.tolist()
        # The SDK cannot tell an empty list of logprobs from none.
        assert same(read.logprobs, written.logprobs.tolist() or None)
        assert_same_table(read.topk_logprobs_np, written.topk)
    written_prompt = arrays.prompt_logprobs
    if written_prompt is None or not written_prompt.size:
        assert response.prompt_logprobs is None
    else:
        values = [None if math.isnan(value) else value for value in written_prompt.tolist()]
        assert same(response.prompt_logprobs, values)
    assert_same_table(response.topk_prompt_logprobs_np, arrays.prompt_topk)
    assert response.prompt_cache_hit_tokens == arrays.prompt_cache_hit_tokens
    assert response.target_prompt_logprobs is None
    assert response.prompt_alt_tokens is None


def assert_same_table(read: Any, written: Topk | None) -> None:
    if written is None or 0 in written.tokens.shape:
        assert read is None
    else:
        assert read.token_ids.tolist() == written.tokens.tolist()
        assert read.logprobs.tobytes() == written.logprobs.tobytes()


def test_the_sdk_sees_none_where_nothing_was_scored() -> None:
    prompt = floats(math.nan, -1.5, -math.inf, math.nan, -9999.0)
    response = deserialize_sample_response(encode(SampleArrays((), prompt_logprobs=prompt)))
    assert response.prompt_logprobs == [None, -1.5, -math.inf, None, -9999.0]


def test_the_sdk_sees_padding_as_absent() -> None:
    rows = table(3, [], [(5, -0.5)], [(0, -0.25), (7, -1.0)], [(1, -1.0), (2, -2.0), (3, -3.0)])
    one = Sequence(StopReason.STOP, ints(5, 0, 1, 2), floats(-1, -1, -1, -1), rows)
    response = deserialize_sample_response(encode(SampleArrays((one,), prompt_topk=rows)))
    read = [None, [(5, -0.5)], [(0, -0.25), (7, -1.0)], [(1, -1.0), (2, -2.0), (3, -3.0)]]
    assert response.sequences[0].topk_logprobs == read
    assert response.topk_prompt_logprobs == read


def test_fields_that_were_not_asked_for_are_absent() -> None:
    message = wire.SampleResponse.FromString(encode(SampleArrays((ramp(3),))))
    assert [field.name for field, _ in message.ListFields()] == ["sequences"]
    fields = [field.name for field, _ in message.sequences[0].ListFields()]
    assert fields == ["stop_reason", "tokens", "logprobs"]


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("completion_512tok_logprobs0_ids_astokenids", Want(sampled_topk=2)),
        ("completion_n4_16tok", Want(sequences=4)),
        ("completion_prompt_logprobs5", Want(prompt_logprobs=True, prompt_topk=5)),
        ("completion_prompt_logprobs5", Want(prompt_logprobs=True, prompt_topk=3, prompt_last=4)),
        ("completion_prompt_logprobs0_1024", Want(prompt_logprobs=True)),
        ("completion_cached_prefix", Want()),
        ("completion_8192tok_logprobs0_ids", Want()),
    ],
    ids=str,
)
def test_a_recorded_answer_reaches_the_user(name: str, want: Want) -> None:
    """vLLM's bytes -> decode -> encode -> the SDK, against the slow reference."""
    one = recordings()[name]
    result = encode(Decoder().decode(one.body, want, one.prompt_tokens))
    right = expected(one.body, want, one.prompt_tokens)
    response = deserialize_sample_response(result)
    assert [sequence.tokens for sequence in response.sequences] == [
        sampled.tokens for sampled in right.sequences
    ]
    for sequence, sampled in zip(response.sequences, right.sequences, strict=True):
        assert sequence.logprobs == np.array(sampled.logprobs, np.float32).tolist()
        assert sequence.topk_logprobs == (rows(sampled.topk) if want.sampled_topk else None)
    if right.prompt_logprobs is not None:
        assert response.prompt_logprobs is not None
        scored = [None if value is None else float(np.float32(value)) for value in nones(right)]
        assert response.prompt_logprobs == scored
        assert response.prompt_logprobs[0] is None
        assert response.topk_prompt_logprobs == (
            rows(right.prompt_topk) if want.prompt_topk else None
        )
    assert response.prompt_cache_hit_tokens == right.cache_hits
    check_last_n_honored(response, want.prompt_last or None)


def nones(right: Any) -> list[float | None]:
    return [None if math.isnan(value) else value for value in right.prompt_logprobs]


def rows(padded: Any) -> list[list[tuple[int, float]] | None]:
    """The reference's table as the SDK shows it: float32 values, padding cut."""
    return [
        [(token, float(np.float32(value))) for token, value in row if (token, value) != PADDING]
        or None
        for row in padded
    ]


def test_an_empty_sample_reaches_the_user() -> None:
    body = bodies.body(bodies.choice(token_ids=[], logprobs=None))
    assert expected(body, Want(), 3).sequences == [Sampled(0, [], [], None)]
    response = deserialize_sample_response(encode(Decoder().decode(body, Want(), 3)))
    assert response.sequences[0].tokens == []
    assert response.sequences[0].stop_reason == "stop"


# --- one process ---------------------------------------------------------------------------------

OURS = "from asgi_gateway.codec import sampling_pb2, encode, decode"
THEIRS = "import tinker; from tinker.proto import response_conv"
USE = """
import numpy as np
from asgi_gateway.codec import SampleArrays, Sequence, StopReason
one = Sequence(StopReason.LENGTH, np.array([1, 2], np.int32), np.array([-1, -2], np.float32))
result = encode.encode(SampleArrays((one,)))
assert sampling_pb2.SampleResponse.FromString(result).SerializeToString() == result
response = response_conv.deserialize_sample_response(result)
print(response.sequences[0].tokens, response.sequences[0].stop_reason)
"""


@pytest.mark.parametrize("imports", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours", "theirs"])
def test_gateway_and_sdk_are_imported_in_either_order(imports: tuple[str, str]) -> None:
    program = "\n".join([*imports, USE])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1, 2] length\n"
