"""From what the SDK sends to what vLLM gets."""

import json
import sys
import time
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgi_gateway.codec import Want
from asgi_gateway.errors import Malformed, RequestError, Unsupported
from asgi_gateway.protocol import Reader, SampleRequest
from asgi_gateway.upstream import prompt
from asgi_gateway.upstream import request as module
from asgi_gateway.upstream.request import UpstreamRequest, build
from tests.support.recorded import sdk_samples

CONTEXT = 4096
TOP = 2**31 - 1
READ = Reader(msgspec.json.Decoder(SampleRequest))


def envelope(**fields: Any) -> dict[str, Any]:
    """A sample as SDK 0.38 sends it; None leaves a field out."""
    whole = {
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [1, 2, 3, 4], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 8, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
        "sampling_session_id": "ss-0",
        "seq_id": 0,
        "prompt_logprobs": False,
        "topk_prompt_logprobs": 0,
        "topk_sample_logprobs": 0,
        "prompt_alt_tokens_k": 0,
        "record_stability_info": False,
        "type": "sample",
        **fields,
    }
    return {name: value for name, value in whole.items() if value is not None}


def made(body: bytes | dict[str, Any], **options: Any) -> UpstreamRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return build(
        READ(data),
        **{
            "model": "base",
            "cache_salt": "salt",
            "max_context": CONTEXT,
            "empty_stop_ends_nothing": True,
            **options,
        },
    )


def sent(body: bytes | dict[str, Any], **options: Any) -> dict[str, Any]:
    """The upstream's JSON, which has no key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        assert len(fields) == len(pairs)
        return fields

    whole = json.loads(made(body, **options).body, object_pairs_hook=once)
    assert isinstance(whole, dict)
    return whole


def params(**fields: Any) -> dict[str, Any]:
    return envelope(sampling_params={"max_tokens": 8, **fields})


def with_tokens(raw: str) -> bytes:
    """A body with this text as the token list of its only chunk."""
    mark = '"tokens": [1, 2, 3, 4]'
    text = json.dumps(envelope())
    assert mark in text
    return text.replace(mark, f'"tokens": {raw}').encode()


def refused(
    body: bytes | dict[str, Any],
    kind: type[RequestError] = Malformed,
    match: str | None = None,
    **options: Any,
) -> str:
    with pytest.raises(kind, match=match) as caught:
        made(body, **options)
    assert caught.type is kind
    text = str(caught.value)
    assert text
    assert len(text) < 500
    return text


def refused_either_way(body: bytes) -> None:
    with pytest.raises(RequestError):
        made(body)


# --- what real SDKs sent -------------------------------------------------------------------------

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


# --- prompts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ("[0]", [0]),
        ("[1,2,3]", [1, 2, 3]),
        (" [ 1 ,\t2\r\n,\n 3 ] ", [1, 2, 3]),
        ("[2147483647]", [TOP]),
        ("[2147483647,2147483646,0,2147483647]", [TOP, TOP - 1, 0, TOP]),
        ("[999999999,1000000000]", [999_999_999, 1_000_000_000]),
    ],
)
def test_prompts_that_are_ids(raw: str, tokens: list[int]) -> None:
    request = made(with_tokens(raw))
    assert json.loads(request.body)["prompt"] == tokens
    assert request.prompt_tokens == len(tokens)
    # Without blanks: equal prompts are equal bytes.
    assert request.body == made(with_tokens(json.dumps(tokens))).body


@pytest.mark.parametrize(
    "raw",
    [
        "null",
        "[]",
        " [ ] ",
        "[null]",
        "[1,null]",
        "[true]",
        "[1,false]",
        "[[1]]",
        "[[1,2]]",
        "[1,[2]]",
        "[[],1]",
        "[[]]",
        "[-1]",
        "[1,-2]",
        "[-0]",
        "[1.5]",
        "[1.0]",
        "[1e3]",
        "[1E3]",
        "[1e-1]",
        "[2147483648]",
        "[1,2147483648,2]",
        "[2999999999]",
        "[10000000000]",
        "[4294967297]",
        "[18446744073709551617]",
        "[1,99999999999999999999999]",
        '["1"]',
        '[""]',
        '"1"',
        '"[1]"',
        "5",
        "0",
        "true",
        "{}",
        '{"0":1}',
        "[{}]",
        "[01]",
        "[00]",
        "[1 2]",
        "[1,]",
        "[,1]",
        "[1,,2]",
        "[1",
        "1]",
        "[1]]",
        "[1]2",
        "[NaN]",
        "[Infinity]",
        "[0x1]",
        "[1_0]",
        "[+1]",
        "[\uff11]",
        "[\u0661]",
        "[1/**/]",
        "[1\u00a0]",
        "[1\x0b]",
        "",
    ],
)
def test_prompts_that_are_no_ids(raw: str) -> None:
    refused(with_tokens(raw))


def test_the_message_names_the_chunk_and_the_limit() -> None:
    chunks = [{"tokens": [1]}, {"tokens": [2, 2**31]}]
    text = refused(envelope(prompt={"chunks": chunks}), match=r"prompt\.chunks\[1\]\.tokens")
    assert "2147483648" in text
    assert "2147483647" in text


def test_hostile_prompts_cost_little_and_answer_400() -> None:
    started = time.perf_counter()
    refused(with_tokens("[" + "9" * 1_000_000 + "]"), match="has the id 99999999999999999999,")
    refused(with_tokens("[1," + "9" * 1_000_000 + ",1]"))
    refused(with_tokens("[" * 100_000 + "]" * 100_000))
    refused(with_tokens("[" * 100_000))
    refused(with_tokens("[" + "[1]," * 100_000 + "1]"))
    refused(with_tokens("[" + "-1," * 100_000 + "1]"))
    assert time.perf_counter() - started < 2.0


def test_deep_nesting_anywhere_is_400() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for field in ("stop", "unknown", "target_prompt_logprobs", "num_samples", "prompt"):
        text = json.dumps(envelope(**{field: "(here)"}))
        refused(text.replace('"(here)"', deep).encode(), match="nested too deeply|Expected")
    refused(deep.encode())
    refused(b'{"a":' * 100_000)
    shallow = json.dumps(envelope(unknown="(here)")).replace('"(here)"', "[" * 50 + "]" * 50)
    assert made(shallow.encode()) == made(envelope())


def test_chunks_are_joined_in_order() -> None:
    chunks = [
        {"tokens": [3, 2], "type": "encoded_text"},
        {"tokens": [], "type": "encoded_text"},
        {"tokens": [1]},
        {"type": None, "tokens": [0]},
    ]
    request = made(envelope(prompt={"chunks": chunks}))
    assert json.loads(request.body)["prompt"] == [3, 2, 1, 0]
    assert request.prompt_tokens == 4


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ({}, Malformed),
        ([], Malformed),
        ("text", Malformed),
        ({"chunks": None}, Malformed),
        ({"chunks": {}}, Malformed),
        ({"chunks": []}, Malformed),
        ({"chunks": [None]}, Malformed),
        ({"chunks": [[1, 2]]}, Malformed),
        ({"chunks": [{"tokens": []}]}, Malformed),
        ({"chunks": [{"type": "encoded_text"}]}, Malformed),
        ({"chunks": [{"type": "encoded_text", "tokens": None}]}, Malformed),
        ({"chunks": [{"type": 5, "tokens": [1]}]}, Malformed),
        ({"chunks": [{}]}, Unsupported),
        ({"chunks": [{"data": "aGk="}]}, Unsupported),
        ({"chunks": [{"tokens": [1]}, {"location": "https://a.invalid"}]}, Unsupported),
        ({"chunks": [{"dmel": "AQ=="}]}, Unsupported),
        ({"chunks": [{"type": "video", "tokens": [1]}]}, Unsupported),
        ({"chunks": [{"type": "x" * 100_000, "tokens": [1]}]}, Unsupported),
    ],
    ids=lambda value: str(value)[:60],
)
def test_prompts_of_other_shapes(prompt: Any, kind: type[RequestError]) -> None:
    refused(envelope(prompt=prompt), kind)


blanks = st.text(" \t\r\n", max_size=3)
ids = st.integers(0, TOP)


@given(st.lists(st.lists(st.tuples(ids, blanks, blanks), max_size=30), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_ids_in_any_layout_arrive_as_they_are(chunks: list[list[tuple[int, str, str]]]) -> None:
    tokens = [token for chunk in chunks for token, _, _ in chunk]
    raws = ["[" + ",".join(f"{a}{token}{b}" for token, a, b in chunk) + "]" for chunk in chunks]
    marks = [f"(chunk {i})" for i in range(len(chunks))]
    text = json.dumps(envelope(prompt={"chunks": [{"tokens": mark} for mark in marks]}))
    for mark, raw in zip(marks, raws, strict=True):
        text = text.replace(f'"{mark}"', raw)
    if not tokens:
        refused(text.encode(), match="no tokens")
        return
    request = made(text.encode())
    assert json.loads(request.body)["prompt"] == tokens
    assert request.prompt_tokens == len(tokens)
    assert request.body.startswith(
        b'{"prompt":' + json.dumps(tokens, separators=(",", ":")).encode()
    )


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text("0123456789-.,[]", max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@given(st.lists(ids | st.integers(TOP - 3, TOP + 3) | anything, max_size=5) | anything)
@settings(max_examples=300, deadline=None)
def test_whatever_comes_as_tokens_is_a_flat_list_of_ids_or_refused(value: Any) -> None:
    body = with_tokens(json.dumps(value))
    good = isinstance(value, list) and all(type(item) is int for item in value)
    if good and value and all(0 <= item <= TOP for item in value):
        assert sent(body)["prompt"] == value
    else:
        refused_either_way(body)


def test_no_object_per_token_is_made_and_the_request_is_not_kept() -> None:
    tokens = "[" + ",".join(map(str, range(100_000, 200_000))) + "]"
    body = with_tokens(tokens)
    made(body, max_context=None)
    before = sys.getallocatedblocks()
    request = made(body, max_context=None)
    assert sys.getallocatedblocks() - before < 100
    assert request.prompt_tokens == 100_000
    del request
    tracemalloc.start()
    try:
        request = made(body, max_context=None)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The upstream body alone is kept; a list of these ints alone would be 5 times as much.
    assert len(request.body) < kept < len(request.body) + 2000
    assert peak < 5 * len(tokens)


# --- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "fields"),
    [
        (None, {}),
        ("END", {"stop": ["END"]}),
        ("\n", {"stop": ["\n"]}),
        ('"\\\u2028\U0001f600', {"stop": ['"\\\u2028\U0001f600']}),
        (["\n\n"], {"stop": ["\n\n"]}),
        (["a", "b"], {"stop": ["a", "b"]}),
        (["1"], {"stop": ["1"]}),
        ([128_001, 0, TOP], {"stop_token_ids": [128_001, 0, TOP]}),
        ([], {"ignore_eos": True}),
    ],
    ids=repr,
)
def test_stops_that_mean_something(stop: Any, fields: dict[str, Any]) -> None:
    if "stop" in fields:
        # The stop may be a special token, whose text vLLM leaves out by default.
        fields = fields | {"skip_special_tokens": False}
    whole = sent(params(stop=stop))
    names = ("stop", "stop_token_ids", "ignore_eos", "skip_special_tokens")
    assert {name: whole[name] for name in names if name in whole} == fields


def test_an_empty_list_of_stops_is_as_absent_for_older_sdks() -> None:
    assert made(params(stop=[]), empty_stop_ends_nothing=False) == made(params())
    assert made(params(), empty_stop_ends_nothing=True) == made(params())
    assert module.EMPTY_STOP_SINCE == (0, 38)


@pytest.mark.parametrize(
    ("stop", "kind"),
    [
        ("", Malformed),
        ([""], Malformed),
        (["a", ""], Malformed),
        ([-1], Malformed),
        ([TOP + 1], Malformed),
        ([2**70], Malformed),
        ([1.5], Malformed),
        ([1.0], Malformed),
        ([True], Malformed),
        ([None], Malformed),
        ([["a"]], Malformed),
        ({}, Malformed),
        (5, Malformed),
        (False, Malformed),
        (["a", 1], Unsupported),
        ([1, "a"], Unsupported),
    ],
    ids=repr,
)
def test_stops_that_mean_nothing(stop: Any, kind: type[RequestError]) -> None:
    refused(params(stop=stop), kind, "stop")


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


# --- the context ---------------------------------------------------------------------------------


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


# --- logprobs ------------------------------------------------------------------------------------


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


# --- the whole -----------------------------------------------------------------------------------


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
