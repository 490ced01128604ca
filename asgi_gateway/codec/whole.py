"""A parsed body -> SampleArrays: the plain way, the fastest for small bodies.

It is also what decoding means: the cut way (`pieces`) has to give the same, and gives up to this
one wherever it does not understand a body.
"""

from typing import Any

import numpy as np

from asgi_gateway.codec import Float32s, SampleArrays, Sequence, Topk, Want, table
from asgi_gateway.codec.values import (
    MissingPolicy,
    absent,
    cache_hits,
    few,
    floats,
    ids,
    in_order,
    named_ids,
    required,
    same_length,
    stop_reason,
)
from asgi_gateway.errors import Unreadable


def answer(doc: Any, want: Want, prompt_tokens: int, missing: MissingPolicy) -> SampleArrays:
    """See `Decoder.decode` for the errors; parser errors come as they are."""
    choices = in_order(doc["choices"], want.sequences)
    if len(choices) == 1:
        sequences: tuple[Sequence, ...] = (_sequence(choices[0], want, missing),)
    else:
        sequences = tuple([_sequence(choice, want, missing) for choice in choices])
    prompt_logprobs, prompt_topk = None, None
    if want.prompt_logprobs:
        prompt_logprobs, prompt_topk = _prompt(choices[0], want, prompt_tokens, missing)
    return SampleArrays(
        tuple(sequences), prompt_logprobs, prompt_topk, cache_hits(doc, prompt_tokens)
    )


def _sequence(choice: Any, want: Want, missing: MissingPolicy) -> Sequence:
    reason = stop_reason(choice)
    if not want.sampled_topk:
        values = few(choice, named=want.named_tokens)
        if values is not None:
            return Sequence(reason, values[0], values[1])
    answer = choice.get("logprobs")
    if want.named_tokens:
        tokens = named_ids(required(required(choice, "logprobs"), "tokens"))
    else:
        tokens = ids(required(choice, "token_ids"))
    listed = answer.get("token_logprobs") if answer is not None else None
    if listed is not None:
        logprobs = floats(listed, missing)
    else:
        logprobs = np.full(tokens.size, np.nan, np.float32)
        if tokens.size:
            absent(missing, f"there are no logprobs for {tokens.size} tokens")
    same_length(tokens, logprobs)
    alternatives = None
    if want.sampled_topk:
        rows = answer.get("top_logprobs") if answer is not None else None
        alternatives = _sampled_topk(rows, tokens.size, want.sampled_topk, missing)
    return Sequence(reason, tokens, logprobs, alternatives)


def _sampled_topk(rows: Any, length: int, k: int, missing: MissingPolicy) -> Topk:
    topk = table.empty(length, k)
    if rows is None:
        if length:
            absent(missing, "top_logprobs is null")
        return topk
    if len(rows) != length:
        raise Unreadable(f"top_logprobs has {len(rows)} rows for {length} tokens")
    with table.exact():
        table.fill_sampled(topk, 0, rows, missing)
    return topk


def _prompt(
    choice: Any, want: Want, prompt_tokens: int, missing: MissingPolicy
) -> tuple[Float32s, Topk | None]:
    """Prompt logprobs and, where asked for, the k best alternatives of every position."""
    scores = table.PromptScores(prompt_tokens, want, missing)
    rows = choice.get("prompt_logprobs")
    if rows is None:
        absent(missing, "prompt_logprobs is null")
        return scores.logprobs, scores.topk
    own = ids(required(choice, "prompt_token_ids"))
    table.same_prompt_length(len(rows), own.size, prompt_tokens)
    with table.exact():
        scores.fill(0, rows, own)
    return scores.logprobs, scores.topk
