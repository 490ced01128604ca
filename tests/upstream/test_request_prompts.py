"""Prompts: token ids in any layout arrive as they are, anything else is refused."""

import json
import sys
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgi_gateway.errors import Malformed, RequestError, Unsupported
from tests.support.sample_request import (
    TOP,
    envelope,
    made,
    refused,
    sent,
    with_tokens,
)


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


def refused_either_way(body: bytes) -> None:
    with pytest.raises(RequestError):
        made(body)


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
