"""Decoding of damaged and hostile bodies: only the documented errors, and no after-effects."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgi_gateway.codec import SampleArrays, Want
from asgi_gateway.codec.decode import Decoder, MissingPolicy
from asgi_gateway.errors import Aborted, MissingLogprobs, Unreadable, UpstreamError
from tests.codec import bodies
from tests.codec.reference import Refused, check, expected
from tests.support.recorded import recordings

DOCUMENTED = (Unreadable, MissingLogprobs, Aborted)
GOOD = bodies.body()
EVERYTHING = Want(prompt_logprobs=True, prompt_topk=2, sampled_topk=2)
RIGHT = expected(GOOD, EVERYTHING, 3)


def check_still_works(decoder: Decoder) -> None:
    """The same decoder reads a good body: nothing of an earlier one is held."""
    check(decoder.decode(GOOD, EVERYTHING, 3), RIGHT)


def refusal(
    decoder: Decoder, body: bytes, want: Want = EVERYTHING, prompt_tokens: int = 3
) -> UpstreamError:
    with pytest.raises(DOCUMENTED) as caught:
        decoder.decode(body, want, prompt_tokens)
    # While the error, its cause and their frames are alive.
    check_still_works(decoder)
    text = str(caught.value)
    assert len(text) < 500
    assert text.isprintable()
    return caught.value


def with_ids(raw: str) -> bytes:
    return GOOD.replace(b'"token_ids":[11,12,13]', b'"token_ids":' + raw.encode())


def with_logprobs(raw: str) -> bytes:
    good = b'"token_logprobs":[-1.5,-0.25,-9999.0]'
    assert good in GOOD
    return GOOD.replace(good, b'"token_logprobs":' + raw.encode())


@pytest.mark.parametrize(
    "raw",
    [
        "[[11],[12],[13]]",
        "[[11,12,13]]",
        "[[11,12],13]",
        "[11,[12,13]]",
        "[[11,12],[],13]",
        "[[],11,12,13]",
        "[11,12,null]",
        "[null,12,13]",
        "[null]",
        "[true,12,13]",
        "[11,12,false]",
        "[11,12,13.0]",
        "[11.5,12,13]",
        "[11,12,1e1]",
        "[11,12,-1]",
        "[11,12,2147483648]",
        "[11,12,4294967307]",
        "[11,12,-2147483649]",
        "[11,12,9223372036854775808]",
        "[11,12,18446744073709551616]",
        "[11,12,1e999]",
        "[11,12,NaN]",
        '[11,12,"13"]',
        "[11,12,{}]",
        "[11,12]",
        "[11,12,13,14]",
        "[]",
        "{}",
        '{"0":11,"1":12,"2":13}',
        "null",
        "true",
        "11",
        "1.5",
        '"11"',
        '""',
    ],
)
@pytest.mark.parametrize("policy", ["fail", "nan"])
def test_token_ids_that_are_no_ids(raw: str, policy: MissingPolicy) -> None:
    error = refusal(Decoder(policy), with_ids(raw))
    assert isinstance(error, Unreadable)
    assert error.category == "server"


@pytest.mark.parametrize(
    "raw",
    [
        "[[-1.5],[-0.25],[-9.0]]",
        "[[-1.5,-0.25,-9.0]]",
        "[[-1.5,-0.25],-9.0]",
        "[-1.5,[-0.25,-9.0]]",
        "[[-1.5,-0.25],[],-9.0]",
        "[[null],-0.25,-9.0]",
        "[-1.5,[null],-9.0]",
        "[true,-0.25,-9.0]",
        "[null,true,-9.0]",
        "[-1.5,-0.25,-1e300]",
        "[-1.5,-0.25,3.5e38]",
        "[-1.5,null,-1e300]",
        "[-1.5,-0.25,-1e999]",
        "[-1.5,-0.25,NaN]",
        "[-1.5,-0.25,-Infinity]",
        '[-1.5,-0.25,"-9.0"]',
        "[-1.5,-0.25,18446744073709551616]",
        "[-1.5,-0.25,{}]",
        "{}",
        "-1.5",
        "false",
        '"-1.5"',
    ],
)
@pytest.mark.parametrize("policy", ["fail", "nan"])
def test_token_logprobs_that_are_no_logprobs(raw: str, policy: MissingPolicy) -> None:
    assert isinstance(refusal(Decoder(policy), with_logprobs(raw)), Unreadable)


def test_a_list_behind_a_plain_first_element_is_read_as_its_leaves() -> None:
    """The known limit of the check for nested arrays: as many leaves as elements, in order."""
    arrays = Decoder().decode(with_ids("[11,[12],13]"), EVERYTHING, 3)
    check(arrays, RIGHT)


def test_a_logprob_at_the_edge_of_float32() -> None:
    arrays = Decoder().decode(with_logprobs("[-3.4028234e38,-1e-60,0]"), Want(), 3)
    assert arrays.sequences[0].logprobs.tolist() == [-3.4028234663852886e38, 0.0, 0.0]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"\x00",
        b"\xff\xfe",
        b"null",
        b"true",
        b"5",
        b'"choices"',
        b"[]",
        b"{}",
        b"[{}]",
        b"NaN",
        b"OK",
        b"<html><head><title>502 Bad Gateway</title></head></html>",
        b"\x1f\x8b\x08\x00",
        b'data: {"choices":[]}\n\n',
        b'{"choices":null}',
        b'{"choices":{}}',
        b'{"choices":{"0":{}}}',
        b'{"choices":"x"}',
        b'{"choices":5}',
        b'{"choices":[null]}',
        b'{"choices":[5]}',
        b'{"choices":["x"]}',
        b'{"choices":[[]]}',
        b'{"choices":[{}]}',
        b'{"choices":[{"index":0}]}',
        b'{"choices":[{"index":0,"finish_reason":"stop"}]}',
        b'{"choices":[{"index":0,"finish_reason":"stop","token_ids":[1]}]',
        b'{"error":{"message":"a 200 that is none"}}',
        GOOD + b"x",
        GOOD + GOOD,
        GOOD.replace(b"a[b", b"a\xff"),
        GOOD.replace(b"a[b", b"a\\ud800"),
        GOOD.replace(b"a[b", b"a\nb"),
        GOOD.replace(b'"text":"a[b"', b'"text":NaN'),
        GOOD.replace(b'"text":"a[b"', b'"text":1e999'),
        GOOD.replace(b'"text":"a[b"', b'"text":18446744073709551616'),
        GOOD.replace(b'"text":"a[b"', b'"text":' + b"9" * 100_000),
        GOOD.replace(b'"text":"a[b"', b'"text":' + b"[" * 2000 + b"]" * 2000),
        GOOD.replace(b'"text":"a[b"', b'"text":' + b'{"a":' * 2000 + b"1" + b"}" * 2000),
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=lambda body: f"{body[:40]!r}-{len(body)}",
)
def test_a_body_that_is_no_answer(body: bytes) -> None:
    error = refusal(Decoder(), body, Want())
    if b'"choices":{}' in body:  # none of the one that was asked for
        assert isinstance(error, Aborted)
    else:
        assert isinstance(error, Unreadable)


def test_the_error_shows_how_the_body_begins_and_nothing_that_a_terminal_obeys() -> None:
    error = refusal(Decoder(), b"<html>\x1b[31m\r\n" + b"secret" * 100)
    assert "<html>\\x1b[31m\\r\\n" in str(error)
    assert len(str(error)) < 400


def test_numbers_that_simdjson_reads_and_we_do_not_need_do_not_matter() -> None:
    body = GOOD.replace(b'"text":"a[b"', b'"text":18446744073709551615,"x":1e308,"y":-1e-400')
    check(Decoder().decode(body, EVERYTHING, 3), RIGHT)


def test_of_a_duplicate_key_the_first_counts() -> None:
    body = GOOD.replace(b'"token_ids":', b'"token_ids":[4,5,6],"token_ids":')
    assert Decoder().decode(body, Want(), 3).sequences[0].tokens.tolist() == [4, 5, 6]
    body = GOOD.replace(b'"choices":', b'"choices":[],"choices":')
    assert isinstance(refusal(Decoder(), body), Aborted)
    body = GOOD.replace(b'"finish_reason":', b'"finish_reason":"abort","finish_reason":')
    assert isinstance(refusal(Decoder(), body), Aborted)


def test_a_duplicate_token_in_a_row_is_one_cell() -> None:
    body = GOOD.replace(b'{"token_id:12":-0.25,', b'{"token_id:12":-0.25,"token_id:12":-0.25,')
    assert body != GOOD
    check(Decoder().decode(body, EVERYTHING, 3), RIGHT)
    body = GOOD.replace(b'"9":{"logprob"', b'"9":{"logprob":-1.25,"rank":2},"9":{"logprob"')
    assert body != GOOD
    check(Decoder().decode(body, EVERYTHING, 3), RIGHT)


@pytest.mark.parametrize(
    "key",
    [
        "token_id:",
        "token_id:-1",
        "token_id:+1",
        "token_id: 1",
        "token_id:1_0",
        "token_id:1.0",
        "token_id:2147483648",
        "token_id:" + "9" * 5000,
        "token_id:\u0661",
        "token_id:token_id:1",
        "TOKEN_ID:1",
        "1",
        "",
    ],
)
def test_keys_of_sampled_alternatives_that_are_no_ids(key: str) -> None:
    choice = bodies.choice()
    choice["logprobs"]["top_logprobs"][1] = {key: -1.0}
    assert isinstance(refusal(Decoder(), bodies.body(choice)), Unreadable)


@pytest.mark.parametrize("key", ["", "-1", " 1", "1_0", "2147483648", "9" * 5000, "x", "\u0661"])
def test_keys_of_prompt_alternatives_that_are_no_ids(key: str) -> None:
    choice = bodies.choice()
    choice["prompt_logprobs"][1][key] = {"logprob": -1.0, "rank": 2}
    assert isinstance(refusal(Decoder(), bodies.body(choice)), Unreadable)


@pytest.mark.parametrize(
    ("prompt_tokens", "rows", "ids"),
    [(4, None, None), (2, None, None), (3, 2, 3), (3, 4, 3), (3, 3, 2), (3, 3, 4), (3, 0, 0)],
)
def test_a_scored_prompt_of_another_length(
    prompt_tokens: int, rows: int | None, ids: int | None
) -> None:
    choice = bodies.choice()
    if rows is not None and ids is not None:
        choice["prompt_logprobs"] = [None, *choice["prompt_logprobs"] * 2][:rows]
        choice["prompt_token_ids"] = [7, 8, 9, 10][:ids]
    error = refusal(Decoder(), bodies.body(choice), prompt_tokens=prompt_tokens)
    assert isinstance(error, Unreadable)
    assert f"for a prompt of {prompt_tokens}" in str(error)


def test_prompt_ids_that_do_not_come() -> None:
    for ids in (None, [], "789", [[7], [8], [9]]):
        choice = bodies.choice(prompt_token_ids=ids)
        assert isinstance(refusal(Decoder(), bodies.body(choice)), Unreadable)


# --- every offset, every place -------------------------------------------------------------------


def test_a_body_cut_at_any_offset_is_unreadable() -> None:
    decoder = Decoder()
    for body in (GOOD, recordings()["completion_1tok_logprobs0_ids"].body):
        for length in range(len(body)):
            with pytest.raises(Unreadable) as caught:
                decoder.decode(body[:length], EVERYTHING, 3)
            assert caught.type is Unreadable
    check_still_works(decoder)


@pytest.mark.parametrize(("want", "least"), [(EVERYTHING, 5000), (Want(), 4000)])
def test_any_byte_may_be_another_one(want: Want, least: int) -> None:
    """Either an error of the documented ones, or exactly what json reads from the same bytes."""
    decoder = Decoder()
    refused = read = 0
    for offset in range(len(GOOD)):
        for byte in b'"[]{},:9-. \\\x00\xff':
            body = GOOD[:offset] + bytes((byte,)) + GOOD[offset + 1 :]
            try:
                arrays = decoder.decode(body, want, 3)
            except DOCUMENTED:
                refused += 1
            else:
                read += 1
                check(arrays, expected(_unique(body), want, 3))
    check_still_works(decoder)
    assert refused > least
    assert read > 500


def _unique(body: bytes) -> bytes:
    """The document with the first of duplicate keys, as simdjson takes it; json takes the last."""

    def first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(reversed(pairs))

    return bodies.dumps(json.loads(body, object_pairs_hook=first))


JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31 - 1,
    2**31,
    2**63,
    1.5,
    -9999.0,
    1e300,
    "",
    "x",
    "1",
    "stop",
    "token_id:5",
    [],
    [1],
    [[1]],
    [1, [2]],
    [None],
    [-1.0, None, -2.0],
    [5, 6, 7],
    ["a"],
    {},
    {"8": 1},
    {"8": {"logprob": -1.0}},
    {"token_id:5": None},
    "(delete)",
)
TWO = bodies.document(bodies.choice(1), bodies.choice(0))
TWO_PLAIN = Want(sequences=2)
TWO_WANTED = Want(sequences=2, prompt_logprobs=True, prompt_topk=2, sampled_topk=2)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value of a document, innermost first."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))
        yield (*path, key)


PLACES = tuple(places(TWO))


def damaged(document: Any, path: tuple[Any, ...], junk: Any) -> Any:
    """A copy with the value at `path` replaced by `junk`, or deleted."""
    whole = copy.deepcopy(document)
    node = whole
    for key in path[:-1]:
        node = node[key]
    if junk == "(delete)":
        del node[path[-1]]
    else:
        node[path[-1]] = junk
    return whole


def compare(decoder: Decoder, policy: MissingPolicy, document: Any, want: Want) -> bool:
    """Whether the document is read; asserts that the slow reference agrees, value by value."""
    body = bodies.dumps(document)
    arrays: SampleArrays | None = None
    try:
        arrays = decoder.decode(body, want, 3)
    except DOCUMENTED:
        with pytest.raises((Refused, LookupError, TypeError)):
            expected(body, want, 3, policy)
        return False
    check(arrays, expected(body, want, 3, policy))
    return True


@pytest.mark.parametrize("policy", ["fail", "nan"])
@pytest.mark.parametrize(("want", "refused"), [(TWO_WANTED, 1000), (TWO_PLAIN, 600)])
def test_any_value_may_be_another_one(policy: MissingPolicy, want: Want, refused: int) -> None:
    decoder = Decoder(policy)
    assert compare(decoder, policy, TWO, want)
    assert len(PLACES) > 100
    read = [
        compare(decoder, policy, damaged(TWO, path, junk), want) for path in PLACES for junk in JUNK
    ]
    assert read.count(False) > refused
    assert read.count(True) > 300
    check_still_works(decoder)


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(JUNK)), min_size=2, max_size=5),
    st.sampled_from(["fail", "nan"]),
    st.sampled_from([TWO_WANTED, TWO_PLAIN]),
)
@settings(max_examples=600, deadline=None)
def test_any_values_may_be_other_ones(
    damages: list[tuple[int, Any]], policy: MissingPolicy, want: Want
) -> None:
    document: Any = TWO
    for number, junk in damages:
        left = tuple(places(document))
        document = damaged(document, left[number % len(left)], junk) if left else document
    compare(Decoder(policy), policy, document, want)


# --- one decoder through it all ------------------------------------------------------------------


def test_ten_thousand_answers_one_in_ten_of_them_broken_half_way() -> None:
    """The choice that breaks is the second, so proxies of the document exist when it does."""
    good = bodies.body(bodies.choice(0), bodies.choice(1))
    broken = [
        bodies.body(bodies.choice(0), bodies.choice(1, **fields))
        for fields in (
            {"token_ids": [1, 2]},
            {"token_ids": [1, 2, "3"]},
            {"finish_reason": "abort"},
            {"logprobs": {"token_logprobs": [-1.0, None, -2.0]}},
            {"logprobs": {"token_logprobs": [-1.0, -1.0, -2.0], "top_logprobs": [{}, {}, 5]}},
            {"logprobs": 5},
        )
    ]
    want = Want(sequences=2, sampled_topk=1)
    decoder = Decoder()
    right = expected(good, want, 3)
    held: list[BaseException] = []
    for number in range(10_000):
        if number % 10 == 9:
            with pytest.raises(DOCUMENTED) as caught:
                decoder.decode(broken[number // 10 % len(broken)], want, 3)
            held = [*held[-20:], caught.value]
        else:
            arrays = decoder.decode(good, want, 3)
            if number % 10 == 0:
                check(arrays, right)
    assert {type(error) for error in held} == set(DOCUMENTED)


def test_what_was_decoded_outlives_the_parser_and_its_next_documents() -> None:
    decoder = Decoder()
    first = decoder.decode(GOOD, EVERYTHING, 3)
    for _ in range(50):
        decoder.decode(recordings()["completion_512tok_logprobs0_ids"].body, Want(), 32)
    check(first, RIGHT)
    del decoder
    check(first, RIGHT)
