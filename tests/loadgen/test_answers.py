"""The answers themselves: deterministic, distinct, and stopped where vLLM would stop."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from loadgen import answers
from loadgen.tape import CHUNKS, LOGPROBS, Strip, Tape, key_of, slices, tape

PROMPT = [(i * 7919 + 13) % 121_000 for i in range(32)]
EOS = 151_933
GOLDEN_TOKENS = [111743, 78474, 145811, 82227, 50638]
GOLDEN_LOGPROBS = [-12.30609130859375, -0.0024436512030661106, -11.379167556762695]


def test_the_same_request_has_the_same_answer_and_a_shorter_one_is_its_beginning() -> None:
    long = answers.tokens(PROMPT, count=10_000, seed=1)
    assert long == answers.tokens(PROMPT, count=10_000, seed=1)
    for count in (1, 4, 5, 8, 16, 17, 4_095, 4_096, 4_097):
        assert answers.tokens(PROMPT, count=count, seed=1) == long[:count]
    assert (
        answers.logprobs(PROMPT, count=9, seed=1) == answers.logprobs(PROMPT, count=400, seed=1)[:9]
    )


def test_answers_do_not_change_between_versions() -> None:
    """Recorded results of this harness are compared by it; a new tape would spoil that."""
    assert answers.tokens(PROMPT, count=5, seed=1) == GOLDEN_TOKENS
    assert answers.logprobs(PROMPT, count=3, seed=1) == GOLDEN_LOGPROBS


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 2},
        {"choice": 1},
        {"model": "other"},
        {"prompt": PROMPT[:-1]},
        {"prompt": [*PROMPT[:-1], PROMPT[-1] + 1]},
    ],
)
def test_everything_that_tells_requests_apart_changes_the_answer(
    changed: dict[str, object],
) -> None:
    asked: dict[str, object] = {"prompt": PROMPT, "seed": 1, "count": 8}
    call = answers.tokens
    assert call(**(asked | changed)) != call(**asked)  # type: ignore[arg-type]


def test_no_seed_is_a_fixed_seed() -> None:
    fixed = answers.tokens(PROMPT, count=8, seed=answers.DEFAULT_SEED)
    assert answers.tokens(PROMPT, count=8) == fixed
    assert answers.tokens(PROMPT, count=8, seed=-1) == fixed


def test_greedy_ignores_seed_and_choice_and_takes_the_likeliest() -> None:
    greedy = answers.tokens(PROMPT, count=8, temperature=0.0)
    assert greedy == answers.tokens(PROMPT, count=8, temperature=9e-6, seed=5, choice=3)
    assert greedy != answers.tokens(PROMPT, count=8, temperature=1e-5)
    tops = answers.top_logprobs(PROMPT, count=50, k=5, temperature=0.0)
    assert all(top[0].rank == 1 and len(top) == 5 for top in tops)


def test_generated_ids_are_ordinary_and_logprobs_are_negative_float32() -> None:
    assert max(answers.tokens(PROMPT, count=65_536)) < 151_936 - 1_000
    for value in answers.logprobs(PROMPT, count=65_536):
        assert value < 0.0
        assert struct.unpack("f", struct.pack("f", value)) == (value,)


def test_alternatives_are_ranked_and_distinct() -> None:
    tops = answers.top_logprobs(PROMPT, count=200, k=5)
    assert {len(top) for top in tops} == {5, 6}
    for top in tops:
        assert len({candidate.token_id for candidate in top}) == len(top)
        ranked = sorted(top, key=lambda candidate: candidate.rank)
        values = [candidate.logprob for candidate in ranked]
        assert values == sorted(values, reverse=True)
        chosen, *others = top
        expected = [rank for rank in range(1, 6) if rank != chosen.rank]
        assert [candidate.rank for candidate in others] == expected


def test_prompt_logprobs_do_not_depend_on_what_follows() -> None:
    scored = answers.prompt_logprobs(PROMPT, k=2)
    assert scored[0] is None
    assert len(scored) == len(PROMPT)
    for token_id, entry in zip(PROMPT[1:], scored[1:], strict=True):
        assert entry is not None
        assert entry[0].token_id == token_id
    alone = answers.prompt_logprobs(PROMPT)
    assert [entry and entry[0] for entry in alone] == [entry and entry[0] for entry in scored]


def test_slices_cover_the_count_and_go_on_past_one_key() -> None:
    key = key_of(b"a", b"b")
    count = sum(CHUNKS) + 5
    cut = slices(key, count)
    assert sum(b - a for a, b in cut) == count
    assert len(cut) == len(CHUNKS) + 2


def test_offsets_count_characters_not_bytes() -> None:
    drawn = tape(151_936)
    cut = slices(key_of(b"a", b"b"), 500)
    texts = [answers.token_text(drawn.ids[p]) for a, b in cut for p in range(a, b)]
    assert drawn.offsets(cut) == [len("".join(texts[:i])) for i in range(500)]


def test_strip_cuts_without_the_last_comma() -> None:
    strip = Strip([b"1,", b"22,", b"3,"])
    assert strip.cut([(0, 1), (1, 3)]) == b"1,22,3"
    assert strip.cut([]) == b""


def test_rendering_again_gives_the_same_strips() -> None:
    drawn = Tape(2_000)
    before = drawn.top_json.cut([(3, 9)])
    drawn.render()
    assert drawn.top_json.cut([(3, 9)]) == before
    assert "2000" in repr(drawn)


def test_a_vocabulary_without_room_for_faults_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2000"):
        Tape(1_999)


def test_logprob_table_descends_and_has_exponents() -> None:
    assert list(LOGPROBS) == sorted(set(LOGPROBS), reverse=True)
    assert any("e-" in repr(value) for value in LOGPROBS)


def test_texts_are_distinct_but_for_the_broken_bytes() -> None:
    texts = [answers.token_text(i) for i in range(20_000)]
    assert len(set(texts)) == 20_000 - 127
    assert answers.decode([5, EOS, 6]) == " t5 t6"
    assert answers.decode([EOS], skip_special=False) == "<|endoftext|>"


def test_length_is_the_usual_end() -> None:
    got = answers.sample(PROMPT, max_tokens=16, seed=1)
    assert got.token_ids == answers.tokens(PROMPT, count=16, seed=1)
    assert got.logprobs == answers.logprobs(PROMPT, count=16, seed=1)
    assert got.text == answers.decode(got.token_ids)
    assert (got.finish_reason, got.stop_reason) == ("length", None)


def test_stop_token_is_kept_and_its_text_is_not() -> None:
    ids = answers.tokens(PROMPT, count=64, seed=1)
    got = answers.sample(PROMPT, max_tokens=64, seed=1, stop_token_ids=[ids[30], ids[9]])
    assert got.token_ids == ids[:10]
    assert len(got.logprobs) == 10
    assert (got.finish_reason, got.stop_reason) == ("stop", ids[9])
    assert got.text == answers.decode(ids[:9])


def test_stop_string_cuts_text_only_even_across_tokens() -> None:
    ids = answers.tokens(PROMPT, count=64, seed=1)
    pieces = [answers.token_text(token_id) for token_id in ids]
    across = pieces[9][-4:] + pieces[10][:4]
    got = answers.sample(PROMPT, max_tokens=64, seed=1, stop=across)
    assert got.token_ids == ids[:11]
    assert (got.finish_reason, got.stop_reason) == ("stop", across)
    assert got.text == "".join(pieces[:10])[:-4]


def test_the_stop_string_completed_first_wins() -> None:
    ids = answers.tokens(PROMPT, count=64, seed=1)
    late, early = answers.token_text(ids[20]), answers.token_text(ids[5])
    got = answers.sample(PROMPT, max_tokens=64, seed=1, stop=[late, early])
    assert got.stop_reason == early


def test_the_last_token_may_complete_a_stop() -> None:
    ids = answers.tokens(PROMPT, count=16, seed=1)
    got = answers.sample(PROMPT, max_tokens=16, seed=1, stop=[answers.token_text(ids[15])])
    assert (got.finish_reason, got.token_ids) == ("stop", ids)
    got = answers.sample(PROMPT, max_tokens=16, seed=1, stop_token_ids=[ids[15]])
    assert (got.finish_reason, got.stop_reason) == ("stop", ids[15])


@pytest.mark.parametrize(
    ("max_tokens", "ignore_eos", "kept", "finish"),
    [
        (16, False, 4, "stop"),
        (4, False, 4, "stop"),
        (3, False, 3, "length"),
        (16, True, 16, "length"),
    ],
)
def test_a_prompt_that_ends_with_eos(
    max_tokens: int, ignore_eos: bool, kept: int, finish: str
) -> None:
    prompt = [*PROMPT, EOS]
    got = answers.sample(prompt, max_tokens=max_tokens, ignore_eos=ignore_eos)
    assert (len(got.token_ids), got.finish_reason, got.stop_reason) == (kept, finish, None)
    assert (got.token_ids[-1] == EOS) == (finish == "stop")
    assert "endoftext" not in got.text


@pytest.mark.parametrize(
    ("min_tokens", "kept"), [(0, 3), (2, 3), (3, 6), (6, 8)], ids=lambda value: str(value)
)
def test_nothing_stops_before_min_tokens(min_tokens: int, kept: int) -> None:
    ids: Sequence[int] = [11, 12, 13, 14, 15, 13, 16, 17]
    by_id = answers.ending(ids, min_tokens=min_tokens, stop_token_ids=[13])
    by_string = answers.ending(ids, min_tokens=min_tokens, stop=["t13"])
    assert (by_id.kept, by_string.kept) == (kept, kept)
