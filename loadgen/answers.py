"""The right answer to any request, as a pure function a test can call.

Tokens and logprobs follow from the prompt ids, the model's name, the seed, the choice's index
and the position; sampling parameters other than a greedy temperature change nothing. A shorter
answer is the beginning of a longer one. Rules a test can rely on:

- No seed is the seed `DEFAULT_SEED`. Greedy (temperature below 1e-5) ignores seed and index.
- EOS is never generated, with one exception made for tests: after a prompt whose last id is EOS,
  the answer is three ordinary tokens and then EOS, unless `ignore_eos` is set.
- Where lengths are drawn (see `lengths`), an answer that has fewer tokens than `max_tokens` ends
  with "stop", without an EOS; `ignore_eos` asks for all of them.
- The generated ids lie below `vocab - 1000`; the ids above are for faults (see `faults`).
- Logprobs are negative and float32-representable. At one position in four the chosen token is the
  most likely one; under greedy always.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from loadgen.candidates import Candidate, candidates
from loadgen.lengths import Lengths
from loadgen.tape import (
    LOGPROBS,
    eos_id,
    key_of,
    positions,
    tape,
    text_of,
)

MODEL: Final = "stand-in"
VOCAB: Final = 151_936
DEFAULT_SEED: Final = 20_777
GREEDY_BELOW: Final = 1e-5
EOS_AFTER: Final = 3
EOS_TEXT: Final = "<|endoftext|>"
MAX_TOKENS: Final = 16
"""vLLM's own default for completions."""

_GREEDY: Final = b"greedy"
_PROMPT: Final = b"prompt"


class Sample(NamedTuple):
    """One choice as it should come back."""

    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: str
    stop_reason: int | str | None


class Ending(NamedTuple):
    """Where an answer ends: tokens kept, tokens whose text shows, and why.

    `text_cut` is the length in characters left of the text, or None for all of it.
    """

    kept: int
    shown: int
    text_cut: int | None
    finish_reason: str
    stop_reason: int | str | None


def prompt_base(prompt: Sequence[int], model: str) -> bytes:
    """What every draw for this prompt and model begins with."""
    return b"%b\0%b\0" % (model.encode(), msgspec.json.encode(prompt))


def draw_name(*, seed: int | None, choice: int, temperature: float = 1.0) -> bytes:
    """What tells this choice's draw from its siblings'. vLLM reads seed -1 as none."""
    if temperature < GREEDY_BELOW:
        return _GREEDY
    return b"%d/%d" % (DEFAULT_SEED if seed is None or seed == -1 else seed, choice)


def prompt_key(base: bytes) -> bytes:
    """The draw behind a prompt's own logprobs, the same whatever is generated after it."""
    return key_of(base, _PROMPT)


def decode(token_ids: Iterable[int], *, vocab: int = VOCAB, skip_special: bool = True) -> str:
    """Text of these ids; EOS is the only special one."""
    eos = eos_id(vocab)
    ordinary = (
        token_text(token_id, vocab=vocab)
        for token_id in token_ids
        if token_id != eos or not skip_special
    )
    return "".join(ordinary)


def token_text(token_id: int, *, vocab: int = VOCAB) -> str:
    """Text of one id as the `tokens` array shows it."""
    return EOS_TEXT if token_id == eos_id(vocab) else text_of(token_id)


def tokens(
    prompt: Sequence[int],
    *,
    count: int,
    model: str = MODEL,
    seed: int | None = None,
    choice: int = 0,
    temperature: float = 1.0,
    vocab: int = VOCAB,
) -> list[int]:
    """The first `count` ids after `prompt`, with no stop rule applied."""
    key = _key(prompt, model, seed, choice, temperature)
    ids = tape(vocab).ids
    return [ids[p] for p in positions(key, count)]


def logprobs(
    prompt: Sequence[int],
    *,
    count: int,
    model: str = MODEL,
    seed: int | None = None,
    choice: int = 0,
    temperature: float = 1.0,
    vocab: int = VOCAB,
) -> list[float]:
    """Logprobs of the same ids."""
    key = _key(prompt, model, seed, choice, temperature)
    indexes = tape(vocab).logprob_indexes
    return [LOGPROBS[indexes[p]] for p in positions(key, count)]


def top_logprobs(
    prompt: Sequence[int],
    *,
    count: int,
    k: int,
    model: str = MODEL,
    seed: int | None = None,
    choice: int = 0,
    temperature: float = 1.0,
    vocab: int = VOCAB,
) -> list[list[Candidate]]:
    """Per position the chosen token, then the k most likely ones without it: k or k + 1 entries."""
    key = _key(prompt, model, seed, choice, temperature)
    drawn = tape(vocab)
    greedy = temperature < GREEDY_BELOW
    return [
        candidates(drawn, p, token_id=drawn.ids[p], k=k, greedy=greedy)
        for p in positions(key, count)
    ]


def prompt_logprobs(
    prompt: Sequence[int], *, k: int = 0, model: str = MODEL, vocab: int = VOCAB
) -> list[list[Candidate] | None]:
    """Per prompt id the id itself, then the k most likely ones without it; the first is None."""
    drawn = tape(vocab)
    key = prompt_key(prompt_base(prompt, model))
    found: list[list[Candidate] | None] = [
        candidates(drawn, p, token_id=token_id, k=k)
        for p, token_id in zip(positions(key, len(prompt)), prompt, strict=True)
    ]
    found[:1] = [None]
    return found


def sample(
    prompt: Sequence[int],
    *,
    max_tokens: int = MAX_TOKENS,
    stop: str | Sequence[str] = (),
    stop_token_ids: Collection[int] = (),
    ignore_eos: bool = False,
    model: str = MODEL,
    seed: int | None = None,
    choice: int = 0,
    temperature: float = 1.0,
    vocab: int = VOCAB,
    lengths: Lengths | None = None,
) -> Sample:
    """One choice, stop rules applied. `max_tokens` is taken as already inside the context."""
    drawn = tape(vocab)
    key = _key(prompt, model, seed, choice, temperature)
    max_tokens, finish = drawn_limit(lengths, key, max_tokens, ignore_eos=ignore_eos)
    on_tape = list(positions(key, max_tokens))
    ids = [drawn.ids[p] for p in on_tape]
    if ends_with_eos(prompt, max_tokens, ignore_eos=ignore_eos, vocab=vocab):
        ids[EOS_AFTER:] = [drawn.eos]
    end = ending(
        ids,
        stop=(stop,) if isinstance(stop, str) else stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        vocab=vocab,
    )
    return Sample(
        token_ids=ids[: end.kept],
        logprobs=[LOGPROBS[drawn.logprob_indexes[p]] for p in on_tape[: end.kept]],
        text=decode(ids[: end.shown], vocab=vocab)[: end.text_cut],
        finish_reason=finish if end.finish_reason == "length" else end.finish_reason,
        stop_reason=end.stop_reason,
    )


def drawn_limit(
    lengths: Lengths | None, key: bytes, limit: int, *, ignore_eos: bool, min_tokens: int = 0
) -> tuple[int, str]:
    """The tokens that an answer of at most `limit` has, and why it ends there."""
    if lengths is not None and not ignore_eos:
        count = max(lengths.draw(key), min_tokens)
        if count < limit:
            return count, "stop"
    return limit, "length"


def ends_with_eos(
    prompt: Sequence[int],
    max_tokens: int,
    *,
    ignore_eos: bool,
    min_tokens: int = 0,
    vocab: int = VOCAB,
) -> bool:
    """Whether the rule for prompts that end with EOS applies and there is room for it."""
    if ignore_eos or not min_tokens <= EOS_AFTER < max_tokens:
        return False
    return prompt[-1] == eos_id(vocab)


def ending(
    ids: Sequence[int],
    *,
    stop: Sequence[str] = (),
    stop_token_ids: Collection[int] = (),
    ignore_eos: bool = False,
    min_tokens: int = 0,
    include_stop: bool = False,
    skip_special: bool = True,
    vocab: int = VOCAB,
) -> Ending:
    """Where generation of `ids` ends; its last token may complete a stop, earlier ones may not.

    At one position an id ends before a string does: the stop token is not part of the text in
    which vLLM looks for stop strings. Before `min_tokens` nothing ends an answer.
    """
    eos = eos_id(vocab)
    count = len(ids)
    reason: int | None = None
    finish = "length"
    if stop_token_ids or (not ignore_eos and eos in ids):
        for index, token_id in enumerate(islice(ids, min_tokens, None), min_tokens):
            if token_id == eos and not ignore_eos:
                count, finish = index + 1, "stop"
                break
            if token_id in stop_token_ids:
                count, finish, reason = index + 1, "stop", token_id
                break
    shown = count if include_stop or finish == "length" else count - 1
    if stop:
        found = _first_stop_string(
            ids[:shown], stop, min_tokens=min_tokens, skip_special=skip_special, vocab=vocab
        )
        if found is not None:
            end_token, start, text = found
            cut = start + len(text) if include_stop else start
            return Ending(end_token + 1, end_token + 1, cut, "stop", text)
    return Ending(count, shown, None, finish, reason)


def _first_stop_string(
    ids: Sequence[int],
    stop: Sequence[str],
    *,
    min_tokens: int,
    skip_special: bool,
    vocab: int,
) -> tuple[int, int, str] | None:
    """Index of the completing token, character offset and text of the stop that comes first.

    Strings completed by the same token count in the order the caller gave them. As in vLLM, only
    a string that ends inside a token at or after `min_tokens` counts.
    """
    ends: list[int] = []
    pieces: list[str] = []
    length = 0
    for token_id in ids:
        piece = decode((token_id,), vocab=vocab, skip_special=skip_special)
        pieces.append(piece)
        length += len(piece)
        ends.append(length)
    text = "".join(pieces)
    floor = ends[min_tokens - 1] if 0 < min_tokens <= len(ends) else 0
    best: tuple[int, int, str] | None = None
    for string in stop:
        start = text.find(string, max(0, floor - len(string) + 1))
        if start < 0:
            continue
        needed = start + len(string)
        token = next(index for index, end in enumerate(ends) if end >= needed)
        if best is None or token < best[0]:
            best = (token, start, string)
    return best


def _key(
    prompt: Sequence[int], model: str, seed: int | None, choice: int, temperature: float
) -> bytes:
    return key_of(
        prompt_base(prompt, model), draw_name(seed=seed, choice=choice, temperature=temperature)
    )
