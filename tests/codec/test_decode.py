"""Decoding, against recorded bodies and a second, slow implementation (reference.py)."""

import itertools
import json
import math
import random
import sys
import tracemalloc
from typing import Any

import pytest
import simdjson

from asgi_gateway.codec import SampleArrays, StopReason, Want
from asgi_gateway.codec.decode import Decoder, MissingPolicy
from asgi_gateway.errors import Aborted, MissingLogprobs, Unreadable
from tests.codec import bodies
from tests.codec.reference import check, expected
from tests.support.recorded import Recorded, recordings

NO_IDS = "token_ids is missing"

# Recorded with other options than ours, or ended by something that is no end of a sample.
REFUSED: dict[str, tuple[type[Exception], str]] = {
    "completion_512tok_ids": (MissingLogprobs, "no logprobs for 512 tokens"),
    "completion_512tok_logprobs0": (Unreadable, NO_IDS),
    "completion_512tok_logprobs0_astokenids": (Unreadable, NO_IDS),
    "completion_512tok_logprobs1_astokenids": (Unreadable, NO_IDS),
    "completion_512tok_plain": (Unreadable, NO_IDS),
    "completion_aborted_by_endpoint": (Aborted, "'abort'"),
    "completion_echo_32768_logprobs0": (Unreadable, NO_IDS),
    "completion_echo_max0": (MissingLogprobs, "1 of 16 token_logprobs are null"),
    "completion_prompt_8192_astokenids": (Unreadable, NO_IDS),
    "completion_repetition": (Aborted, "'repetition'"),
    "nan_completion_no_logprobs": (MissingLogprobs, "no logprobs for 2 tokens"),
    "router_circuit_half_open_ok": (Unreadable, "does not parse"),
    "router_max_tokens_null": (Unreadable, NO_IDS),
    "router_model_missing": (Unreadable, NO_IDS),
    "router_prompt_list_of_lists": (Unreadable, NO_IDS),
    "router_prompt_string": (Unreadable, NO_IDS),
    "router_stop_token_ids": (Unreadable, NO_IDS),
    "router_top_k_minus1": (Unreadable, NO_IDS),
}


def answers() -> list[Recorded]:
    """Every recorded 200 of a completion."""
    return [one for one in recordings().values() if one.is_completion and one.status == 200]


def readable() -> list[Recorded]:
    return [one for one in answers() if one.name not in REFUSED]


def wanted(one: Recorded) -> Want:
    return Want(sequences=one.request.get("n", 1) * one.prompts)


def tokens_of(arrays: SampleArrays) -> list[list[int]]:
    return [sequence.tokens.tolist() for sequence in arrays.sequences]


# --- recorded bodies -----------------------------------------------------------------------------


@pytest.mark.parametrize("one", readable(), ids=repr)
def test_a_recorded_answer_decodes_to_what_json_reads(one: Recorded) -> None:
    body, want = one.body, wanted(one)
    right = expected(body, want, one.prompt_tokens)
    assert any(sampled.tokens for sampled in right.sequences)
    check(Decoder().decode(body, want, one.prompt_tokens), right)


@pytest.mark.parametrize("name", REFUSED)
def test_a_recorded_answer_without_what_we_ask_for_is_refused(name: str) -> None:
    one = recordings()[name]
    kind, text = REFUSED[name]
    sequences = 2 if name == "router_prompt_list_of_lists" else 1
    with pytest.raises(kind, match=text) as caught:
        Decoder().decode(one.body, Want(sequences=sequences), 1)
    assert caught.type is kind


def test_the_recordings_are_all_there() -> None:
    assert len(readable()) == 44
    assert set(REFUSED) <= {one.name for one in answers()}
    assert {len(one.body) > 600_000 for one in readable()} == {True, False}


@pytest.mark.parametrize(
    ("name", "topk", "last"),
    [
        ("completion_prompt_logprobs0", 0, 0),
        ("completion_prompt_logprobs0_1024", 0, 0),
        ("completion_prompt_logprobs0_1024", 0, 10),
        *itertools.product(["completion_prompt_logprobs5"], [0, 1, 3, 5, 7], [0, 1, 4, 15, 16, 99]),
    ],
)
def test_a_recorded_prompt_is_scored(name: str, topk: int, last: int) -> None:
    one = recordings()[name]
    want = Want(prompt_logprobs=True, prompt_topk=topk, prompt_last=last)
    arrays = Decoder().decode(one.body, want, one.prompt_tokens)
    check(arrays, expected(one.body, want, one.prompt_tokens))
    assert arrays.prompt_logprobs is not None
    unscored = [math.isnan(value) for value in arrays.prompt_logprobs.tolist()]
    scorable = one.prompt_tokens - 1
    assert unscored.count(False) == min(last or scorable, scorable)
    assert unscored[0]


def test_ids_as_keys_carry_the_sampled_alternatives() -> None:
    one = recordings()["completion_512tok_logprobs0_ids_astokenids"]
    want = Want(sampled_topk=1)
    arrays = Decoder().decode(one.body, want, one.prompt_tokens)
    check(arrays, expected(one.body, want, one.prompt_tokens))
    topk = arrays.sequences[0].topk
    assert topk is not None
    assert topk.tokens[:, 0].tolist() == arrays.sequences[0].tokens.tolist()


def test_decoded_strings_as_keys_are_no_alternatives() -> None:
    one = recordings()["completion_logprobs5"]
    with pytest.raises(Unreadable, match="not a token id"):
        Decoder().decode(one.body, Want(sampled_topk=5), one.prompt_tokens)


def test_the_reasons_a_sample_may_end_for() -> None:
    for name, reason in {
        "completion_eos": StopReason.STOP,
        "completion_stop_string": StopReason.STOP,
        "completion_stop_token_id": StopReason.STOP,
        "completion_length": StopReason.LENGTH,
    }.items():
        one = recordings()[name]
        sequence = Decoder().decode(one.body, Want(), one.prompt_tokens).sequences[0]
        assert sequence.stop_reason is reason, name
        # The stopping token, or the tokens of the stopping string, belong to the sample.
        assert sequence.tokens.size == json.loads(one.body)["usage"]["completion_tokens"]


def test_a_stopped_sample_keeps_its_last_token() -> None:
    body = bodies.body(bodies.choice(token_ids=[5, 6, 2], stop_reason=2, finish_reason="stop"))
    arrays = Decoder().decode(body, Want(), 3)
    assert tokens_of(arrays) == [[5, 6, 2]]
    assert arrays.sequences[0].stop_reason is StopReason.STOP


def test_minus_9999_passes_as_it_is() -> None:
    sequence = Decoder().decode(bodies.body(), Want(), 3).sequences[0]
    assert sequence.logprobs.tolist() == [-1.5, -0.25, -9999.0]


def test_an_empty_sample_is_a_sample() -> None:
    empty: dict[str, Any] = {"token_logprobs": [], "top_logprobs": []}
    for logprobs in (None, empty):
        body = bodies.body(bodies.choice(token_ids=[], logprobs=logprobs))
        want = Want(sampled_topk=2)
        arrays = Decoder().decode(body, want, 3)
        assert arrays.sequences[0].tokens.size == arrays.sequences[0].logprobs.size == 0
        check(arrays, expected(body, want, 3))


# --- several choices -----------------------------------------------------------------------------


def test_choices_are_ordered_by_index_in_whatever_order_they_come() -> None:
    one = recordings()["completion_n4_16tok"]
    document = json.loads(one.body)
    decoder = Decoder()
    right = expected(one.body, Want(sequences=4), one.prompt_tokens)
    assert len({tuple(sampled.tokens) for sampled in right.sequences}) == 4
    for order in itertools.permutations(document["choices"]):
        body = bodies.dumps({**document, "choices": order})
        check(decoder.decode(body, Want(sequences=4), one.prompt_tokens), right)


def test_two_prompts_in_one_request_are_choices_of_one_sample() -> None:
    one = recordings()["completion_two_prompts_n2"]
    arrays = Decoder().decode(one.body, Want(sequences=4), one.prompt_tokens)
    assert [len(tokens) for tokens in tokens_of(arrays)] == [4, 4, 4, 4]


@pytest.mark.parametrize(
    ("indexes", "kind"),
    [
        ([0, 1, 2], Aborted),
        ([], Aborted),
        ([0, 1, 2, 3, 4], Unreadable),
        ([0, 1, 2, 2], Unreadable),
        ([1, 2, 3, 4], Unreadable),
        ([0, 1, 2, -1], Unreadable),
        ([0, True, 2, 3], Unreadable),
        ([0, 1.0, 2, 3], Unreadable),
        ([0, "1", 2, 3], Unreadable),
        ([0, None, 2, 3], Unreadable),
        ([0, 1, 2, 2**63], Unreadable),
    ],
    ids=str,
)
def test_choices_that_are_not_numbered_0_to_3(indexes: list[Any], kind: type[Exception]) -> None:
    choices = [bodies.choice() | {"index": index} for index in indexes]
    body = bodies.body(*choices) if choices else bodies.dumps(bodies.document() | {"choices": []})
    with pytest.raises(kind) as caught:
        Decoder().decode(body, Want(sequences=4), 3)
    assert caught.type is kind
    assert len(str(caught.value)) < 400


def test_the_one_choice_of_one_is_number_0() -> None:
    with pytest.raises(Unreadable, match=r"numbered \[3\]"):
        Decoder().decode(bodies.body(bodies.choice(3)), Want(), 3)


@pytest.mark.parametrize("reason", ["abort", "error", None, "repetition", "tool_calls", "", 5, {}])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_choice_that_did_not_end_by_itself_interrupts_all(reason: Any, position: int) -> None:
    choices = [bodies.choice(index) for index in range(3)]
    choices[position]["finish_reason"] = reason
    with pytest.raises(Aborted, match="finish_reason"):
        Decoder("nan").decode(bodies.body(*choices), Want(sequences=3), 3)


def test_an_aborted_choice_without_a_token_is_not_delivered() -> None:
    cut = bodies.choice(1, finish_reason="abort", token_ids=[], logprobs=None)
    with pytest.raises(Aborted, match="'abort'"):
        Decoder().decode(bodies.body(bodies.choice(), cut), Want(sequences=2), 3)


# --- top-k rows ----------------------------------------------------------------------------------


def test_sampled_alternatives_are_the_best_first_and_padded() -> None:
    body = bodies.body()
    for k in (1, 2, 3, 4):
        want = Want(sampled_topk=k)
        check(Decoder().decode(body, want, 3), expected(body, want, 3))
    topk = Decoder().decode(body, Want(sampled_topk=2), 3).sequences[0].topk
    assert topk is not None
    # The first token is beyond its two best, which come without it.
    assert topk.tokens.tolist() == [[21, 31], [12, 22], [23, 33]]
    topk = Decoder().decode(body, Want(sampled_topk=3), 3).sequences[0].topk
    assert topk is not None
    assert topk.tokens.tolist()[1] == [12, 22, 0]
    assert topk.logprobs.tolist()[1] == [-0.25, -1.75, -99999.0]


def test_recorded_alternatives_in_any_key_order() -> None:
    """512 rows of 5 or 6 entries: the strings of the recording renamed to ids, and shuffled."""
    one = recordings()["completion_512tok_logprobs5_ids"]
    document = json.loads(one.body)
    choice = document["choices"][0]
    shuffle = random.Random(5).shuffle
    rows = []
    for token, row in zip(choice["token_ids"], choice["logprobs"]["top_logprobs"], strict=True):
        ids = [token, *range(200_000, 200_000 + len(row) - 1)]
        cells = [(f"token_id:{i}", value) for i, value in zip(ids, row.values(), strict=True)]
        shuffle(cells)
        rows.append(dict(cells))
    assert {len(row) for row in rows} <= {5, 6}
    choice["logprobs"]["top_logprobs"] = rows
    body = bodies.dumps(document)
    for k in (1, 5):
        want = Want(sampled_topk=k)
        arrays = Decoder().decode(body, want, one.prompt_tokens)
        check(arrays, expected(body, want, one.prompt_tokens))


def test_prompt_alternatives_go_by_rank_and_the_own_token_always_counts() -> None:
    want = Want(prompt_logprobs=True, prompt_topk=2)
    for row in itertools.permutations(bodies.choice()["prompt_logprobs"][1].items()):
        choice = bodies.choice()
        choice["prompt_logprobs"][1] = dict(row)
        arrays = Decoder().decode(bodies.body(choice), want, 3)
        assert arrays.prompt_logprobs is not None
        assert arrays.prompt_topk is not None
        assert arrays.prompt_logprobs.tolist()[1:] == [-5.5, -1.25]
        assert arrays.prompt_topk.tokens.tolist() == [[0, 0], [80, 81], [90, 9]]
        assert arrays.prompt_topk.logprobs.tolist()[0] == [-99999.0, -99999.0]
        plain = Decoder().decode(bodies.body(choice), Want(prompt_logprobs=True), 3)
        assert plain.prompt_logprobs is not None
        assert plain.prompt_logprobs.tolist()[1:] == [-5.5, -1.25]


def test_ten_alternatives_along_a_long_prompt() -> None:
    length, k = 3000, 10
    rows: list[dict[str, Any] | None] = [None]
    for position in range(1, length):
        entries = [(str(position), -12.0, 5000 if position % 3 else 4)]
        ranks = range(1, k + 1) if position % 3 else [1, 2, 3, *range(5, k + 1)]
        entries += [(str(9000 + rank), -1.0 - rank / 8, rank) for rank in ranks]
        rows.append({key: {"logprob": value, "rank": rank} for key, value, rank in entries})
    choice = bodies.choice(prompt_logprobs=rows, prompt_token_ids=list(range(length)))
    body = bodies.body(choice)
    want = Want(prompt_logprobs=True, prompt_topk=k)
    check(Decoder().decode(body, want, length), expected(body, want, length))


# --- missing logprobs ----------------------------------------------------------------------------


def holder(*values: float | None) -> dict[str, Any]:
    rows = [{f"token_id:{i}": value} for i, value in enumerate(values)]
    return {"token_logprobs": list(values), "top_logprobs": rows}


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"token_logprobs": None, "top_logprobs": None},
        holder(None, -1.0, -2.0),
        holder(-1.0, None, -2.0),
        holder(-1.0, -2.0, None),
        holder(None, None, None),
        holder(None, -1, -9999.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("topk", [0, 1])
def test_a_missing_logprob_fails_or_becomes_nan(logprobs: Any, topk: int) -> None:
    body, want = bodies.body(bodies.choice(logprobs=logprobs)), Want(sampled_topk=topk)
    with pytest.raises(MissingLogprobs):
        Decoder().decode(body, want, 3)
    arrays = Decoder("nan").decode(body, want, 3)
    check(arrays, expected(body, want, 3, "nan"))
    given = (logprobs or {}).get("token_logprobs") or [None] * 3
    values = arrays.sequences[0].logprobs.tolist()
    assert [None if math.isnan(value) else value for value in values] == given


def test_an_absent_logprobs_field_is_a_missing_logprob() -> None:
    choice = bodies.choice()
    del choice["logprobs"]
    with pytest.raises(MissingLogprobs):
        Decoder().decode(bodies.body(choice), Want(), 3)
    logprobs = Decoder("nan").decode(bodies.body(choice), Want(), 3).sequences[0].logprobs
    assert all(math.isnan(value) for value in logprobs.tolist())


@pytest.mark.parametrize("policy", ["fail", "nan"])
@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ([-1.0] * 2, MissingLogprobs, "token_ids has 3 entries, token_logprobs 2"),
        ([], MissingLogprobs, "token_ids has 3 entries, token_logprobs 0"),
        ([-1.0] * 4, Unreadable, "token_ids has 3 entries, token_logprobs 4"),
    ],
)
def test_lengths_that_differ_are_named_whatever_the_policy(
    policy: MissingPolicy, values: list[float], kind: type[Exception], text: str
) -> None:
    body = bodies.body(bodies.choice(logprobs={"token_logprobs": values}))
    with pytest.raises(kind, match=text) as caught:
        Decoder(policy).decode(body, Want(), 3)
    assert caught.type is kind


@pytest.mark.parametrize("own", [None, {"logprob": None, "rank": None}], ids=["absent", "null"])
@pytest.mark.parametrize("topk", [0, 2])
def test_a_prompt_row_without_the_prompts_own_token(own: Any, topk: int) -> None:
    choice = bodies.choice()
    del choice["prompt_logprobs"][1]["8"]
    if own is not None:
        choice["prompt_logprobs"][1]["8"] = own
    body, want = bodies.body(choice), Want(prompt_logprobs=True, prompt_topk=topk)
    with pytest.raises(MissingLogprobs, match="position 1"):
        Decoder().decode(body, want, 3)
    check(Decoder("nan").decode(body, want, 3), expected(body, want, 3, "nan"))


@pytest.mark.parametrize("position", [1, 2])
def test_a_null_prompt_row_where_one_was_asked_for(position: int) -> None:
    choice = bodies.choice()
    choice["prompt_logprobs"][position] = None
    body, want = bodies.body(choice), Want(prompt_logprobs=True, prompt_topk=2)
    with pytest.raises(MissingLogprobs, match=f"position {position}"):
        Decoder().decode(body, want, 3)
    check(Decoder("nan").decode(body, want, 3), expected(body, want, 3, "nan"))
    # Not asked for, so not missed.
    last = Want(prompt_logprobs=True, prompt_last=1)
    if position == 1:
        check(Decoder().decode(body, last, 3), expected(body, last, 3))


def test_an_unscored_prompt() -> None:
    body, want = bodies.body(bodies.choice(prompt_logprobs=None)), Want(prompt_logprobs=True)
    with pytest.raises(MissingLogprobs, match="prompt_logprobs"):
        Decoder().decode(body, want, 3)
    check(Decoder("nan").decode(body, want, 3), expected(body, want, 3, "nan"))
    assert Decoder().decode(body, Want(), 3).prompt_logprobs is None


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    choice = bodies.choice(prompt_logprobs=[None], prompt_token_ids=[7])
    arrays = Decoder().decode(bodies.body(choice), Want(prompt_logprobs=True, prompt_topk=1), 1)
    assert arrays.prompt_logprobs is not None
    assert [math.isnan(value) for value in arrays.prompt_logprobs.tolist()] == [True]


# --- cache hits ----------------------------------------------------------------------------------


def test_cache_hits_of_a_recorded_prefix() -> None:
    hits = {
        name: Decoder().decode(one.body, Want(), one.prompt_tokens).prompt_cache_hit_tokens
        for name in ("completion_cached_prefix", "completion_cache_salt")
        for one in [recordings()[name]]
    }
    assert hits == {"completion_cached_prefix": 384, "completion_cache_salt": 0}


@pytest.mark.parametrize(
    ("usage", "hits"),
    [
        (None, 0),
        ({}, 0),
        ({"prompt_tokens": 3, "prompt_tokens_details": None}, 0),
        ({"prompt_tokens": 3, "prompt_tokens_details": {}}, 0),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}, 0),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 3}}, 3),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, 0),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": -1}}, 0),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": True}}, 0),
        # Two equal prompts in one request: the sum says nothing about one of them.
        ({"prompt_tokens": 6, "prompt_tokens_details": {"cached_tokens": 2}}, 0),
    ],
    ids=str,
)
def test_cache_hits_are_this_prompts_or_none(usage: Any, hits: int) -> None:
    arrays = Decoder().decode(bodies.body(usage=usage), Want(), 3)
    assert arrays.prompt_cache_hit_tokens == hits
    assert type(arrays.prompt_cache_hit_tokens) is int


# --- large bodies, and what decoding costs -------------------------------------------------------


def test_a_body_as_large_as_32769_tokens_make_it() -> None:
    """The recorded echo of 32,768 tokens, its first null and its missing ids filled in."""
    one = recordings()["completion_echo_32768_logprobs0"]
    ids = list(range(100_000, 132_769))
    body = one.body.replace(b'"token_logprobs":[null,', b'"token_logprobs":[-0.5,')
    body = body.replace(b'"token_ids":null', b'"token_ids":' + bodies.dumps(ids))
    assert len(body) > 5 << 20
    decoder = Decoder()
    for _ in range(2):  # the second time without the parser of the first, which was too large
        arrays = decoder.decode(body, Want(), 32_768)
        assert tokens_of(arrays) == [ids]
        values = json.loads(body)["choices"][0]["logprobs"]["token_logprobs"]
        assert arrays.sequences[0].logprobs.tolist() == pytest.approx(values, rel=1e-7)
    body = body.replace(b'"token_logprobs":[-0.5', b'"token_logprobs":[null')
    with pytest.raises(MissingLogprobs, match="1 of 32769 token_logprobs are null"):
        decoder.decode(body, Want(), 32_768)


def test_a_parser_is_kept_but_after_a_large_body_or_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A parser keeps 3.5 times its largest document; one that failed may still have proxies."""
    made: list[simdjson.Parser] = []

    class Counting:
        def Parser(self) -> simdjson.Parser:
            made.append(simdjson.Parser())
            return made[-1]

    monkeypatch.setattr("asgi_gateway.codec.decode.simdjson", Counting())
    decoder, good = Decoder(), bodies.body()
    for _ in range(3):
        decoder.decode(good, Want(), 3)
    assert len(made) == 1
    with pytest.raises(Unreadable):
        decoder.decode(good[:-1], Want(), 3)
    decoder.decode(good, Want(), 3)
    assert len(made) == 2
    # Of a large body that is laid out as ever, only slices are parsed, by a second parser.
    large = recordings()["completion_8192tok_logprobs0_ids"].body
    for _ in range(3):
        decoder.decode(large, Want(), 32)
    assert len(made) == 3
    # One that is not is parsed whole.
    with pytest.raises(Unreadable):
        decoder.decode(large[:-1], Want(), 32)
    decoder.decode(good, Want(), 3)
    assert len(made) == 4


def test_decoding_makes_no_python_object_per_token() -> None:
    """8,192 floats as Python objects would add 262 KB to the peak, ints 230; arrays are 128."""
    bodies_by_length = {
        512: recordings()["completion_512tok_logprobs0_ids"].body,
        8192: recordings()["completion_8192tok_logprobs0_ids"].body,
    }
    decoder, want = Decoder(), Want()
    kept, peak = {}, {}
    for length, body in bodies_by_length.items():
        decoder.decode(body, want, 32)  # the parser grows outside of the measurement
        before = sys.getallocatedblocks()
        arrays = decoder.decode(body, want, 32)
        kept[length] = sys.getallocatedblocks() - before
        assert arrays.sequences[0].tokens.size == length
        del arrays
        tracemalloc.start()
        try:
            arrays = decoder.decode(body, want, 32)
            peak[length] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        del arrays
    assert kept[8192] <= kept[512] + 20
    assert kept[8192] < 200
    # The arrays, a slice, and masks of a window.
    assert peak[8192] < len(bodies_by_length[8192]) * 0.6
