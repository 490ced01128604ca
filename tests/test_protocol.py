"""The messages of the public API, as real SDKs write them and as they must not be."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgi_gateway import protocol
from asgi_gateway.errors import Malformed
from asgi_gateway.protocol import Chunk, Reader, SampleRequest
from asgi_gateway.protocol import given as is_given
from tests.support.recorded import FIXTURES, sdk_samples

KINDS: dict[str, type] = {
    "/api/v1/asample": protocol.SampleRequest,
    "/api/v1/client/config": protocol.ClientConfig,
    "/api/v1/client/dynamic_config": protocol.ClientConfig,
    "/api/v1/create_session": protocol.CreateSession,
    "/api/v1/create_sampling_session": protocol.CreateSamplingSession,
    "/api/v1/retrieve_future": protocol.RetrieveFuture,
    "/api/v1/session_heartbeat": protocol.Heartbeat,
    "/api/v1/sessions/sess-1/finish": protocol.FinishSession,
}


def reader(kind: type) -> Reader:
    return Reader(msgspec.json.Decoder(kind))


READ = reader(SampleRequest)


def recorded() -> list[Any]:
    document = json.loads((FIXTURES / "tinker_sdk_requests.json").read_bytes())
    return [
        pytest.param(request["path"], request["body"], id=f"{recording['sdk']}-{number}")
        for recording in document["recordings"]
        for number, request in enumerate(recording["requests"])
        if request["path"] in KINDS
    ]


def sample(seq_id: str = "0", more: str = "") -> bytes:
    return (
        '{"sampling_session_id":"ss-0","seq_id":' + seq_id + ',"prompt":{"chunks":[]}' + more + "}"
    ).encode()


@pytest.mark.parametrize(("path", "body"), recorded())
def test_a_message_of_a_real_sdk_is_read_field_by_field(path: str, body: dict[str, Any]) -> None:
    message = reader(KINDS[path])(json.dumps(body).encode())
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, (str, int, bool, type(None))):
            assert value == body.get(name)


def test_every_kind_was_recorded() -> None:
    assert {parameter.values[0] for parameter in recorded()} == set(KINDS)


def test_samples_of_real_sdks_are_read_down_to_the_tokens() -> None:
    for _, body in sdk_samples():
        request = READ(json.dumps(body).encode())
        for chunk, sent in zip(request.prompt.chunks, body["prompt"]["chunks"], strict=True):
            assert chunk.kind() == sent["type"]
            if "tokens" in sent:
                assert json.loads(bytes(chunk.tokens)) == sent["tokens"]
        for name, value in body["sampling_params"].items():
            assert getattr(request.sampling_params, name) == value
        assert is_given(request.target_prompt_logprobs) == ("target_prompt_logprobs" in body)


# --- seq_id --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seq_id", [0, 1, 2**53 - 1, 2**53 + 1, 10**18 + 7, 999_999_999_123_456_789, 2**63 - 1]
)
def test_a_seq_id_is_exact(seq_id: int) -> None:
    assert READ(sample(str(seq_id))).seq_id == seq_id


@pytest.mark.parametrize(
    "seq_id",
    [
        *("-1", str(2**63), str(2**64), "1" * 400, "1" * 5000),
        *("1.0", "1e18", "1.5", "null", "true", '"1"', "[1]", "{}", "NaN", "01", "+1", ""),
    ],
)
def test_a_seq_id_is_an_int64(seq_id: str) -> None:
    with pytest.raises(Malformed) as caught:
        READ(sample(seq_id))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("field", ["sampling_session_id", "seq_id", "prompt"])
def test_what_a_sample_cannot_be_without(field: str) -> None:
    whole = json.loads(sample())
    del whole[field]
    with pytest.raises(Malformed, match=field):
        READ(json.dumps(whole).encode())
    with pytest.raises(Malformed, match=field):
        READ(json.dumps(whole | {field: None}).encode())


# --- chunks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk", "kind"),
    [
        ({"type": "encoded_text", "tokens": [1]}, "encoded_text"),
        ({"tokens": [1]}, "encoded_text"),
        ({"tokens": []}, "encoded_text"),
        ({"type": None, "tokens": [1], "data": None}, "encoded_text"),
        ({"data": "aGk=", "format": "png", "expected_tokens": 4}, "image"),
        ({"location": "https://a.invalid/a.jpg", "format": "jpeg"}, "image_asset_pointer"),
        ({"dmel": "AQE="}, "dmel"),
        ({"type": "image", "tokens": [1]}, "image"),
        ({"type": "hologram"}, "hologram"),
        ({"tokens": None}, "unknown"),
        ({"unheard_of": 1}, "unknown"),
        ({}, "unknown"),
    ],
    ids=str,
)
def test_the_kind_of_a_chunk(chunk: dict[str, Any], kind: str) -> None:
    assert msgspec.json.decode(json.dumps(chunk), type=Chunk).kind() == kind


@pytest.mark.parametrize("raw", ["0", "false", '""', "[]", "{}", '"null"', "[null]"])
def test_whatever_is_not_null_is_given(raw: str) -> None:
    assert is_given(READ(sample(more=f',"target_prompt_logprobs":{raw}')).target_prompt_logprobs)


@pytest.mark.parametrize("more", ["", ',"target_prompt_logprobs":null'])
def test_absent_and_null_are_not_given(more: str) -> None:
    assert not is_given(READ(sample(more=more)).target_prompt_logprobs)
    assert not is_given(Chunk().tokens)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"5",
        b'"text"',
        b"{",
        b"{}{}",
        sample() + b"x",
        sample()[:-1],
        sample().replace(b"ss-0", b"\xff\xfe"),
        sample().replace(b"ss-0", b"\\ud800"),
        sample().replace(b"ss-0", b"a\nb"),
        sample(more=',"num_samples":NaN'),
        sample(more=',"num_samples":Infinity'),
        sample(more=',"unknown":NaN'),
        sample(more=',"unknown":"\x00"'),
        sample(more=',"num_samples":"2"'),
        sample(more=',"num_samples":true'),
        sample(more=',"prompt_logprobs":1'),
        sample(more=',"sampling_params":[]'),
        sample(more=',"sampling_params":{"stop":{}}'),
        sample(more=',"unknown":' + "[" * 100_000 + "]" * 100_000),
        sample(more=',"unknown":' + '{"a":' * 100_000 + "1" + "}" * 100_000),
        sample(more=',"target_prompt_logprobs":' + "[" * 100_000),
        b"[" * 1_000_000,
        "\ufeff".encode() + sample(),
        sample().decode().encode("utf-16"),
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
    ],
    ids=lambda body: f"{body[-60:]!r}",
)
def test_bad_input_is_malformed_and_nothing_else(body: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        READ(body)
    assert caught.value.status == 400
    assert 0 < len(str(caught.value)) < 300
    # The traceback of a client's mistake is worth nothing.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_message_says_where() -> None:
    body = sample(more=',"sampling_params":{"max_tokens":"8"}')
    with pytest.raises(Malformed, match=r"\$\.sampling_params\.max_tokens"):
        READ(body)


@given(st.binary(max_size=80), st.integers(0, 40), st.integers(0, 40))
@settings(deadline=None)
def test_no_bytes_do_anything_else(noise: bytes, start: int, length: int) -> None:
    good = sample(more=',"num_samples":2,"sampling_params":{"stop":["a"],"seed":1}')
    body = good[:start] + noise + good[start + length :]
    try:
        request = READ(body)
    except Malformed:
        return
    assert isinstance(request, SampleRequest)
    assert json.loads(body)["seq_id"] == request.seq_id


def test_of_a_duplicate_key_the_last_counts() -> None:
    assert READ(sample(more=',"seq_id":5')).seq_id == 5


def test_unknown_fields_and_kinds_of_numbers_pass() -> None:
    more = ',"new":{"a":[1e999999,' + "9" * 5000 + ']},"sampling_params":{"temperature":1,"x":null}'
    assert READ(sample(more=more)).sampling_params.temperature == 1.0


# --- what we say ---------------------------------------------------------------------------------


def test_absent_optional_fields_are_left_out_of_answers() -> None:
    assert (
        protocol.encode(protocol.Sampler("s", "base")) == b'{"sampler_id":"s","base_model":"base"}'
    )
    models = [protocol.SupportedModel("a", 4096), protocol.SupportedModel("b")]
    assert json.loads(protocol.encode(protocol.Capabilities(models))) == {
        "supported_models": [{"model_name": "a", "max_context_length": 4096}, {"model_name": "b"}]
    }
