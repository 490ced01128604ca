"""Cutting against the whole parse: the same arrays or the same class of error."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import simdjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asgi_gateway.codec import SampleArrays, Want, cut, decode, layout, pieces
from asgi_gateway.codec.decode import Decoder, MissingPolicy
from asgi_gateway.codec.encode import encode
from asgi_gateway.codec.values import named_ids
from asgi_gateway.errors import Aborted, MissingLogprobs, Unreadable
from tests.codec import bodies
from tests.codec.test_decode import REFUSED, answers, readable, wanted
from tests.support.recorded import Recorded, recordings

EVERYTHING = Want(sequences=2, prompt_logprobs=True, prompt_topk=2, sampled_topk=2)
NAMED = "completion_512tok_logprobs0_ids_astokenids"


@pytest.fixture
def small() -> Iterator[None]:
    """Every array is cut out, and slices hold a few elements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "CUT_FROM_BYTES", 0)
        patch.setattr(cut, "_WORTH_BYTES", 1)
        patch.setattr(cut, "_PROBE", 2)
        patch.setattr(cut, "_WINDOW", 64)
        patch.setattr(pieces, "_NUMBER_SLICE", 9)
        patch.setattr(pieces, "_ROW_SLICE", 100)
        patch.setattr(pieces, "_SLICES_A_STEP", 1)
        yield


def outcome(decoder: Decoder, body: bytes, want: Want, prompt: int) -> bytes | type[Exception]:
    """The encoded arrays, which hold every bit of them, or the class of the error."""
    try:
        return encode(decoder.decode(body, want, prompt))
    except (Unreadable, MissingLogprobs, Aborted) as error:
        return type(error)


def whole(body: bytes, want: Want, prompt: int, policy: MissingPolicy = "fail") -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "CUT_FROM_BYTES", 1 << 60)
        patch.setattr(decode, "CUT_OBJECTS_FROM_BYTES", 1 << 60)
        return outcome(Decoder(policy), body, want, prompt)


def by_pieces(body: bytes, want: Want, prompt: int) -> SampleArrays:
    """By cutting alone: raises where it would leave a body to the whole parse."""
    run = pieces.steps(body, want, prompt, "fail", simdjson.Parser())
    while True:
        try:
            next(run)
        except StopIteration as done:
            arrays: SampleArrays = done.value
            return arrays


# --- recorded bodies -----------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("one", readable(), ids=repr)
def test_every_recorded_answer_is_cut(one: Recorded) -> None:
    want = wanted(one)
    arrays = by_pieces(one.body, want, one.prompt_tokens)
    assert encode(arrays) == whole(one.body, want, one.prompt_tokens)


@pytest.mark.parametrize("one", answers(), ids=repr)
@pytest.mark.parametrize("named", [False, True])
def test_recorded_answers_have_one_outcome(one: Recorded, named: bool, small: None) -> None:
    want = Want(sequences=wanted(one).sequences, named_tokens=named)
    prompt = 1 if one.name in REFUSED else one.prompt_tokens
    policies: tuple[MissingPolicy, ...] = ("fail", "nan")
    for policy in policies:
        right = whole(one.body, want, prompt, policy)
        assert outcome(Decoder(policy), one.body, want, prompt) == right


@pytest.mark.parametrize(
    ("name", "k", "last"),
    [
        ("completion_prompt_logprobs0", 0, 0),
        ("completion_prompt_logprobs0_1024", 0, 10),
        ("completion_prompt_logprobs5", 5, 0),
        ("completion_prompt_logprobs5", 2, 4),
    ],
)
@pytest.mark.usefixtures("small")
def test_recorded_prompt_scores_are_cut(name: str, k: int, last: int) -> None:
    one = recordings()[name]
    want = Want(prompt_logprobs=True, prompt_topk=k, prompt_last=last)
    arrays = by_pieces(one.body, want, one.prompt_tokens)
    assert encode(arrays) == whole(one.body, want, one.prompt_tokens)


@pytest.mark.usefixtures("small")
def test_recorded_names_are_the_recorded_ids() -> None:
    """vLLM writes both: the same ids, as names and as numbers."""
    one = recordings()[NAMED]
    by_id = encode(Decoder().decode(one.body, Want(), one.prompt_tokens))
    named = Want(named_tokens=True)
    assert encode(by_pieces(one.body, named, one.prompt_tokens)) == by_id
    assert whole(one.body, named, one.prompt_tokens) == by_id
    without = one.body.replace(b'"token_ids":[', b'"unused":[')
    assert encode(by_pieces(without, named, one.prompt_tokens)) == by_id
    rows = Want(named_tokens=True, sampled_topk=1)
    assert encode(by_pieces(without, rows, one.prompt_tokens)) == whole(
        one.body, Want(sampled_topk=1), one.prompt_tokens
    )


def test_recordings_without_ids_are_readable_by_name() -> None:
    names = [name for name in REFUSED if name.endswith("astokenids")]
    assert len(names) == 3
    for name in names:
        one = recordings()[name]
        tokens = json.loads(one.body)["choices"][0]["logprobs"]["tokens"]
        arrays = Decoder().decode(one.body, Want(named_tokens=True), one.prompt_tokens)
        assert [f"token_id:{i}" for i in arrays.sequences[0].tokens.tolist()] == tokens


# --- names that are none -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        "5",
        "token_id:",
        "token_id:-1",
        "token_id: 1",
        "token_id:1,token_id:2",
        "5token_id:",
        "token_id:2147483648",
        "token_id:99999999999",
        "token_id5:3",
        "tok3en_id:5",
        "token_id:token_id:5",
        "token_id:\u0661",
        "token_id:1\\",
        None,
        5,
        [],
    ],
)
def test_names_that_are_no_ids(name: Any, small: None) -> None:
    for names in ([name], ["token_id:4", name, "token_id:6"], ["token_id:4", "token_id:5", name]):
        logprobs = {"token_logprobs": [-1.0] * len(names), "tokens": names}
        body = bodies.body(bodies.choice(logprobs=logprobs))
        assert outcome(Decoder(), body, Want(named_tokens=True), 3) is Unreadable
        assert whole(body, Want(named_tokens=True), 3) is Unreadable


def test_names_of_any_length_of_id() -> None:
    ids = [0, 9, 10, 99_999, 2**31 - 1]
    parsed = simdjson.Parser().parse(bodies.dumps([f"token_id:{i}" for i in ids]))
    assert named_ids(parsed).tolist() == ids


# --- layouts -------------------------------------------------------------------------------------

# What a search might take for structure.
TEXTS = (
    "a",
    "]",
    '"',
    "\\",
    '\\"',
    "],",
    ":",
    "]}",
    "]},",
    "}}]",
    ",",
    "{",
    "}},{",
    '"token_ids":[1]',
    '],"top_logprobs":[',
    ']},"finish_reason":"stop","token_ids":[9,9,9]',
    "cut out:1",
    "token_id:5",
    "finish_reason",
    "\u2028\n",
    "0",
    "",
)
texts = st.sampled_from(TEXTS) | st.text(max_size=4)
values = st.floats(-30, 0, width=32)


@st.composite
def choices(draw: st.DrawFn, index: int) -> dict[str, Any]:
    """A choice whose strings are hostile and whose layout is vLLM's."""
    length = draw(st.integers(0, 8))
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length))
    rows = [
        {f"token_id:{i}": draw(values) for i in {token, *draw(st.sets(st.integers(0, 9)))}}
        for token in ids
    ]
    cells = st.fixed_dictionaries(
        {"logprob": values, "rank": st.integers(1, 3), "decoded_token": texts | st.none()}
    )
    scored = [
        {str(i): draw(cells) for i in {own, *draw(st.sets(st.integers(0, 6), max_size=3))}}
        for own in (8, 9)
    ]
    strings = draw(st.lists(texts, min_size=length, max_size=length))
    return {
        "index": index,
        "text": "".join(strings),
        "logprobs": {
            "text_offset": list(range(length)),
            "token_logprobs": [draw(values) for _ in ids],
            "tokens": strings,
            "top_logprobs": rows,
        },
        "finish_reason": draw(st.sampled_from(["stop", "length", "length", "abort"])),
        "stop_reason": draw(texts | st.none() | st.integers(-(2**63), 2**63 - 1)),
        "token_ids": ids,
        "prompt_logprobs": [None, *scored],
        "prompt_token_ids": [7, 8, 9],
        "routed_experts": None,
    }


SPACES = {"compact": (",", ":"), "plain": (", ", ": "), "odd": (" ,\n", "\t:")}


@given(
    st.tuples(choices(0), choices(1)),
    st.sampled_from(sorted(SPACES)),
    st.randoms(use_true_random=False),
    st.sampled_from(["none", "keys", "nest", "twice", "drop", "cut off"]),
    st.sampled_from(["fail", "nan"]),
    st.booleans(),
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_document_has_one_outcome(
    small: None,
    pair: tuple[dict[str, Any], dict[str, Any]],
    spaces: str,
    chance: random.Random,
    damage: str,
    policy: MissingPolicy,
    named: bool,
) -> None:
    listed = list(pair)
    victim = chance.choice([listed[0], listed[0]["logprobs"], listed[1]])
    key = chance.choice(list(victim))
    if damage == "keys":
        items = list(victim.items())
        chance.shuffle(items)
        victim.clear()
        victim.update(items)
    elif damage == "nest":
        victim[key] = chance.choice([[victim[key]], {"token_ids": [1], key: victim[key]}, [[], {}]])
    elif damage == "drop":
        del victim[key]
    text = json.dumps(
        bodies.document(*listed), separators=SPACES[spaces], ensure_ascii=chance.random() < 0.5
    )
    body = text.encode("utf-8", "surrogatepass")
    if damage == "twice":
        other = json.dumps(chance.choice([listed[1].get(key), [], None, [3, 2, 1]])).encode()
        name = json.dumps(key).encode()
        body = body.replace(name, name + b":" + other + b"," + name, 1)
    elif damage == "cut off":
        body = body[: chance.randrange(len(body))]
    want = Want(2, not named, 0 if named else 2, chance.choice([0, 2]), 0, named)
    right = whole(body, want, 3, policy)
    assert outcome(Decoder(policy), body, want, 3) == right


@given(st.tuples(choices(0), choices(1)))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_vllms_layout_is_cut_whatever_its_strings(
    small: None, pair: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    for choice in pair:
        choice["finish_reason"] = "stop"
    body = json.dumps(bodies.document(*pair), separators=(",", ":"), ensure_ascii=False).encode()
    if body.count(b"cut out:"):
        return  # our own mark: left to the whole parse
    assert encode(by_pieces(body, EVERYTHING, 3)) == whole(body, EVERYTHING, 3)


def test_recorded_contents_are_stepped_over_by_their_size() -> None:
    body = recordings()["completion_8192tok_logprobs0_ids"].body
    found = layout.Layout(body)
    for name, opened in (
        ("text", b'"'),
        ("text_offset", b"["),
        ("token_logprobs", b"["),
        ("tokens", b"["),
        ("top_logprobs", b"["),
    ):
        key = b'"%b":%b' % (name.encode(), opened)
        start = body.index(key) + len(key)
        text = json.dumps(value(body, name), separators=(",", ":"), ensure_ascii=False)
        end = start + len(text.encode()) - 2
        if name in ("text", "tokens", "top_logprobs"):
            step = {"text": found.text_end, "tokens": found.tokens_end}.get(name, found.rows_end)
            assert step(start) == end
        found.found(name, start, end)


def value(body: bytes, name: str) -> Any:
    choice = json.loads(body)["choices"][0]
    return choice[name] if name in choice else choice["logprobs"][name]


def hollow(**fields: Any) -> dict[str, Any]:
    """A choice whose rows have one cell each and whose tokens are the text's parts."""
    logprobs = {
        "text_offset": [0, 1, 2],
        "token_logprobs": [-1.5, -2.5, -3.5],
        "tokens": ["a", "b", "c"],
        "top_logprobs": [{"a": -1.5}, {"b": -2.5}, {"c": -3.5}],
    }
    return bodies.choice(text="abc", logprobs=logprobs, **fields)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("wanted", [1, 2])
@pytest.mark.parametrize("move", ["text", "logprobs", "finish_reason", "token_ids", "index"])
def test_keys_that_a_step_runs_over_are_missed(move: str, wanted: int, named: bool) -> None:
    """Choices in whose order a step goes from one to the next, or over keys that are needed."""
    one, two = hollow(index=0), hollow(index=1)
    for choice in (one, two):
        choice[move] = choice.pop(move)
    one["logprobs"] = {**one["logprobs"], "top_logprobs": None} if move == "index" else None
    for listed in ([one, two], [two, one], [one], [two]):
        body = bodies.body(*listed)
        want = Want(sequences=wanted, named_tokens=named)
        for policy in ("fail", "nan"):
            assert outcome(Decoder(policy), body, want, 3) == whole(body, want, 3, policy)


@pytest.mark.usefixtures("small")
def test_a_step_into_another_choice_is_noticed_by_the_count() -> None:
    """Rows that are missing, and another choice's that end just where they would."""
    one, two = hollow(index=0), hollow(index=0)
    one["logprobs"]["top_logprobs"] = []
    for padding in range(400):
        two["text"] = "x" * padding
        body = bodies.body(one, two)
        assert outcome(Decoder(), body, Want(), 3) is whole(body, Want(), 3)


def test_what_is_skipped_is_not_checked() -> None:
    """The limit: a body that is wrong in what nobody asked for, and right else, is read."""
    good = recordings()["completion_8192tok_logprobs0_ids"].body
    right = encode(Decoder().decode(good, Want(), 32))
    at = good.index(b'"text":"') + 100
    broken = good[:at] + b"\xff" + good[at + 1 :]
    assert encode(Decoder().decode(broken, Want(), 32)) == right
    assert whole(broken, Want(), 32) is Unreadable


def test_a_large_body_cut_short_anywhere_is_unreadable() -> None:
    body = recordings()["completion_8192tok_logprobs0_ids"].body
    decoder = Decoder()
    assert len(body) > 2 * decode.CUT_FROM_BYTES
    for length in range(len(body) - 1, len(body) // 2, -4001):
        assert outcome(decoder, body[:length], Want(), 32) is Unreadable


# --- pauses --------------------------------------------------------------------------------------


def test_one_decoder_does_others_while_it_pauses() -> None:
    large = recordings()["completion_8192tok_logprobs0_ids"]
    small = recordings()["completion_16tok_logprobs0_ids"]
    decoder = Decoder()
    right = (
        encode(decoder.decode(large.body, Want(), 32)),
        encode(decoder.decode(small.body, Want(), 32)),
    )
    runs = [decoder.steps(large.body, Want(), 32) for _ in range(3)]
    found: list[bytes] = []
    while runs:
        for run in list(runs):
            try:
                next(run)
            except StopIteration as done:
                found.append(encode(done.value))
                runs.remove(run)
            assert encode(decoder.decode(small.body, Want(), 32)) == right[1]
            assert encode(decoder.decode(large.body, Want(), 32)) == right[0]
    assert found == [right[0]] * 3


def test_a_long_scored_prompt_takes_many_short_steps() -> None:
    length, k = 20_000, 3
    rows: list[Any] = [None]
    for position in range(1, length):
        cells = {str(position): {"logprob": -9.5, "rank": 77, "decoded_token": ' "]'}}
        for rank in range(1, k + 1):
            cells[str(200_000 + rank)] = {"logprob": -rank / 8, "rank": rank, "decoded_token": "x"}
        rows.append(cells)
    choice = bodies.choice(prompt_logprobs=rows, prompt_token_ids=list(range(length)))
    body, want = bodies.body(choice), Want(prompt_logprobs=True, prompt_topk=k)
    found: list[SampleArrays] = []

    def whole_run() -> Iterator[None]:
        found.append((yield from Decoder().steps(body, want, length)))

    pauses = sum(1 for _ in whole_run())
    assert encode(found[0]) == whole(body, want, length)
    assert pauses >= len(body) // pieces._ROW_SLICE
