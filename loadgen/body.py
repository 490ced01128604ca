"""The answer's bytes: vLLM's fields in vLLM's order, compact, null where unset.

What most requests ask for (no logprobs, or the chosen token's) is cut from the tape. The rest
(alternatives, the EOS rule) is written position by position. Both must agree; a test compares.

A lean body holds what a gateway needs, 26 of some 84 bytes a token: `text` is empty, and so are
`text_offset`, `tokens` and `top_logprobs`; the prompt is not echoed. Requests for alternatives and
prompts under the EOS rule get a full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from loadgen.answers import (
    EOS_AFTER,
    GREEDY_BELOW,
    Ending,
    decode,
    draw_name,
    drawn_limit,
    ending,
    ends_with_eos,
    prompt_key,
    token_text,
)
from loadgen.candidates import candidates
from loadgen.lengths import Lengths
from loadgen.request import Asked, Job
from loadgen.tape import LOGPROBS_JSON, Tape, key_of, positions, slices

FINGERPRINT: Final = "loadgen-stand-in"

_CHOICE: Final = (
    b'{"index":%d,"text":"%b","logprobs":%b,"finish_reason":"%b","stop_reason":%b,"token_ids":%b,'
    b'"prompt_logprobs":%b,"prompt_token_ids":%b,"routed_experts":null}'
)
_LOGPROBS: Final = b'{"text_offset":%b,"token_logprobs":[%b],"tokens":[%b],"top_logprobs":[%b]}'
_BODY: Final = (
    b'{"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[%b],'
    b'"service_tier":null,"system_fingerprint":"'
    + FINGERPRINT.encode()
    + b'","usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":null,'
    b'"multimodal_tokens":null},"completion_tokens_details":null},'
    b'"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
)

_encode: Final = msgspec.json.encode


class Style(NamedTuple):
    """How answers are written. lengths: None for as many tokens as asked for."""

    lean: bool = False
    lengths: Lengths | None = None


EXACT: Final = Style()
"""As vLLM writes it, with as many tokens as asked for."""


class Answer(NamedTuple):
    """A body and the token counts in it."""

    body: bytes
    prompt_tokens: int
    generated: int


class _Generated(NamedTuple):
    """One choice as JSON fragments."""

    kept: int
    text: bytes
    ids: bytes
    logprobs: bytes
    end: Ending


def answer(job: Job, tape: Tape, style: Style = EXACT, *, request_id: str, created: int) -> Answer:
    """The whole body. `created` is in seconds since the epoch."""
    asked = job.asked
    model = job.model.encode()
    choices: list[bytes] = []
    generated = 0
    for prompt, limit in zip(job.prompts, job.max_tokens, strict=True):
        echo = _encode(prompt)
        base = b"%b\0%b\0" % (model, echo)
        prompt_logprobs = b"null"
        if asked.prompt_logprobs is not None:
            prompt_logprobs = _prompt_logprobs(tape, prompt, base, asked.prompt_logprobs)
        shown = echo if asked.return_token_ids and not style.lean else b"null"
        for choice in range(asked.n):
            draw = draw_name(seed=asked.seed, choice=choice, temperature=job.temperature)
            made = _generate(job, tape, style, prompt, limit, key_of(base, draw))
            generated += made.kept
            choices.append(
                _CHOICE
                % (
                    len(choices),
                    made.text,
                    made.logprobs,
                    made.end.finish_reason.encode(),
                    b"null" if made.end.stop_reason is None else _encode(made.end.stop_reason),
                    made.ids,
                    prompt_logprobs,
                    shown,
                )
            )
    prompt_tokens = sum(map(len, job.prompts))
    body = _BODY % (
        _encode(f"cmpl-{request_id}"),
        created,
        _encode(job.model),
        b",".join(choices),
        prompt_tokens,
        prompt_tokens + generated,
        generated,
    )
    return Answer(body, prompt_tokens, generated)


def _generate(
    job: Job, tape: Tape, style: Style, prompt: list[int], limit: int, key: bytes
) -> _Generated:
    asked = job.asked
    limit, finish = drawn_limit(
        style.lengths, key, limit, ignore_eos=asked.ignore_eos, min_tokens=asked.min_tokens
    )
    eos = ends_with_eos(
        prompt, limit, ignore_eos=asked.ignore_eos, min_tokens=asked.min_tokens, vocab=tape.vocab
    )
    if eos or asked.logprobs:
        return _position_by_position(job, tape, limit, key, finish, eos=eos)
    end = Ending(limit, limit, None, finish, None)
    if job.stop or job.stop_token_ids:
        end = _ending(job, tape, [tape.ids[p] for p in positions(key, limit)], finish)
    ranges = slices(key, end.kept)
    if style.lean:
        text = b""
    elif end.shown == end.kept and end.text_cut is None:
        text = tape.text(ranges)
    else:
        text = _cut_text(asked, tape, [tape.ids[p] for p in positions(key, end.shown)], end)
    ids = b"[%b]" % tape.ids_json.cut(ranges) if asked.return_token_ids else b"null"
    logprobs = b"null"
    if asked.logprobs is not None:
        if style.lean:
            logprobs = _LOGPROBS % (b"[]", tape.logprobs_json.cut(ranges), b"", b"")
            return _Generated(end.kept, text, ids, logprobs, end)
        as_ids = bool(asked.return_tokens_as_token_ids)
        logprobs = _LOGPROBS % (
            _encode(tape.offsets(ranges, as_ids=as_ids)),
            tape.logprobs_json.cut(ranges),
            (tape.tokens_as_ids_json if as_ids else tape.tokens_json).cut(ranges),
            (tape.top_as_ids_json if as_ids else tape.top_json).cut(ranges),
        )
    return _Generated(end.kept, text, ids, logprobs, end)


def _ending(job: Job, tape: Tape, ids: list[int], finish: str) -> Ending:
    """`finish` is the reason where no stop rule ends the answer."""
    asked = job.asked
    end = ending(
        ids,
        stop=job.stop,
        stop_token_ids=job.stop_token_ids,
        ignore_eos=asked.ignore_eos,
        min_tokens=asked.min_tokens,
        include_stop=asked.include_stop_str_in_output,
        skip_special=asked.skip_special_tokens,
        vocab=tape.vocab,
    )
    return end._replace(finish_reason=finish) if end.finish_reason == "length" else end


def _cut_text(asked: Asked, tape: Tape, shown: Sequence[int], end: Ending) -> bytes:
    text = decode(shown, vocab=tape.vocab, skip_special=asked.skip_special_tokens)
    return _encode(text[: end.text_cut])[1:-1]


def _position_by_position(
    job: Job, tape: Tape, limit: int, key: bytes, finish: str, *, eos: bool
) -> _Generated:
    asked = job.asked
    ids = [tape.ids[p] for p in positions(key, limit)]
    if eos:
        ids[EOS_AFTER:] = [tape.eos]
    end = _ending(job, tape, ids, finish)
    del ids[end.kept :]
    text = _cut_text(asked, tape, ids[: end.shown], end)
    ids_json = _encode(ids) if asked.return_token_ids else b"null"
    logprobs = b"null"
    if asked.logprobs is not None:
        names = [_name(asked, tape, token_id) for token_id in ids]
        on_tape = list(positions(key, end.kept))
        logprobs = _LOGPROBS % (
            _encode(list(accumulate(map(len, names[:-1]), initial=0))),
            b",".join([LOGPROBS_JSON[tape.logprob_indexes[p]] for p in on_tape]),
            b",".join(map(_encode, names)),
            b",".join(
                [_top(job, tape, p, token_id) for p, token_id in zip(on_tape, ids, strict=True)]
            ),
        )
    return _Generated(end.kept, text, ids_json, logprobs, end)


def _name(asked: Asked, tape: Tape, token_id: int) -> str:
    if asked.return_tokens_as_token_ids:
        return f"token_id:{token_id}"
    return token_text(token_id, vocab=tape.vocab)


def _top(job: Job, tape: Tape, position: int, token_id: int) -> bytes:
    """One object; ids with the same text collapse in it, as they do in vLLM."""
    greedy = job.temperature < GREEDY_BELOW
    k = job.asked.logprobs or 0
    entries = {
        _name(job.asked, tape, candidate.token_id): repr(candidate.logprob).encode()
        for candidate in candidates(tape, position, token_id=token_id, k=k, greedy=greedy)
    }
    return b"{%b}" % b",".join(b"%b:%b" % (_encode(name), v) for name, v in entries.items())


def _prompt_logprobs(tape: Tape, prompt: list[int], base: bytes, k: int) -> bytes:
    entries = [b"null"]
    on_tape = positions(prompt_key(base), len(prompt))
    next(on_tape)
    for position, token_id in zip(on_tape, prompt[1:], strict=True):
        entries.append(
            b"{%b}"
            % b",".join(
                [
                    b'"%d":{"logprob":%b,"rank":%d,"decoded_token":%b}'
                    % (
                        candidate.token_id,
                        repr(candidate.logprob).encode(),
                        candidate.rank,
                        _encode(token_text(candidate.token_id, vocab=tape.vocab)),
                    )
                    for candidate in candidates(tape, position, token_id=token_id, k=k)
                ]
            )
        )
    return b"[%b]" % b",".join(entries)
