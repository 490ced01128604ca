"""A sample request -> the body of vLLM's /v1/completions, with the prompt spliced in as it came.

Every parameter is sent, answered by masking later, or refused by name; none is accepted and
ignored. Values that vLLM would otherwise fill in from a model's generation_config (temperature,
top_p, top_k, max_tokens) are always sent.
"""

import functools
from typing import Any, Final

import msgspec
from msgspec import UNSET

from asgi_gateway.codec import Want
from asgi_gateway.errors import Malformed, Unsupported
from asgi_gateway.protocol import SampleRequest, SamplingParams, given
from asgi_gateway.upstream.prompt import MAX_TOKEN_ID, prompt_ids, repeated
from asgi_gateway.upstream.stops import short

# vLLM's own limits: choices and prompts per request, and what counts as greedy. Its limit of
# alternatives per position (--max-logprobs) is the operator's, and it answers for that itself.
MAX_SEQUENCES: Final = 16_384
GREEDY_BELOW: Final = 1e-5
MAX_SEED: Final = 2**63 - 1
MAX_TOPK: Final = 1 << 20
MAX_TOP_K: Final = 2**31 - 1
MAX_LAST_N: Final = 1 << 53
MAX_TEMPERATURE: Final = 2.0

# Room kept for an answer: int32 id and float32 logprob per token, 16 bytes per top-k cell.
TOKEN_BYTES: Final = 8
TOPK_CELL_BYTES: Final = 16

# What a generated token takes more as a name than as an id, at most: `token_id:` and ten digits
# twice, for an empty text twice and an id in a list of its own. Measured: 6 bytes where tokens are
# nine characters long, 15 in ordinary text.
NAMED_TOKEN_BYTES: Final = 28

# The upstream's integers: vLLM clamps max_tokens, vllm-router takes 32 bits.
MAX_TOKENS: Final = 2**31 - 1

# The first SDK that documents `stop: []` as "no stop at all"; before, it was a way to say nothing.
EMPTY_STOP_SINCE: Final = (0, 38)


class UpstreamRequest(msgspec.Struct, frozen=True, gc=False):
    """What a sample needs to run: the body, the shape of its answer, and how large that may be."""

    body: bytes
    want: Want
    prompt_tokens: int
    reserve_bytes: int


def build(
    request: SampleRequest,
    *,
    model: str,
    cache_salt: str,
    max_context: int | None,
    empty_stop_ends_nothing: bool,
) -> UpstreamRequest:
    """Check a request and write its upstream body.

    Args:
        model: the upstream's name of the weights.
        cache_salt: names the weights in vLLM's prefix cache; never empty.
        max_context: tokens that prompt and completion may have together; None if unknown.
        empty_stop_ends_nothing: whether `stop: []` also disables EOS.

    Raises:
        Malformed: a value out of range; the text names field, value and limit.
        Unsupported: a feature that the upstream does not have, by name.
    """
    if (
        request.record_stability_info
        or request.prompt_alt_tokens_k
        or request.target_prompt_logprobs is not UNSET
    ):
        _refuse_unsupported(request)
    prompt, prompt_tokens = prompt_ids(request.prompt.chunks)
    params = request.sampling_params or _NOT_GIVEN
    stop, seed, max_tokens = params.stop, params.seed, params.max_tokens
    # A seed is mostly another for every sample: those would only push the others out.
    # A long `stop` is checked before it is made a key.
    kept = (stop is None or short(stop)) and seed is None
    shape = (_shape if kept else _new_shape)(
        model,
        cache_salt,
        max_context,
        prompt_tokens,
        max_tokens is not None and len(prompt) > NAMED_TOKEN_BYTES * max_tokens,
        request.num_samples,
        request.prompt_logprobs,
        request.topk_prompt_logprobs,
        request.topk_sample_logprobs,
        request.prompt_logprobs_last_n,
        max_tokens,
        seed,
        tuple(stop) if isinstance(stop, list) else stop,
        empty_stop_ends_nothing,
        params.temperature,
        params.top_k,
        params.top_p,
    )
    if shape.repeats > 1:
        prompt = repeated(prompt, shape.repeats)
    return UpstreamRequest(
        b'{"prompt":' + prompt + shape.rest, shape.want, prompt_tokens, shape.reserve_bytes
    )


class _Asked(msgspec.Struct, frozen=True, gc=False):
    """All of a request but the prompt's tokens and the seq_id: the same for most samples of a run.

    long_prompt: whether the prompt takes more than the names of the longest answer could.
        `return_token_ids` sends the prompt back once in every choice. Without it a generated token
        costs up to NAMED_TOKEN_BYTES more, whatever the tokens are.
    """

    model: str
    cache_salt: str
    max_context: int | None
    prompt_tokens: int
    long_prompt: bool
    num_samples: int | None
    prompt_logprobs: bool | None
    topk_prompt_logprobs: int | None
    topk_sample_logprobs: int | None
    prompt_logprobs_last_n: int | None
    max_tokens: int | None
    seed: int | None
    stop: str | tuple[str | int, ...] | None
    empty_stop_ends_nothing: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None


class _Shape(msgspec.Struct, frozen=True, gc=False):
    """What follows the prompt in the body, and what the answer will be like.

    repeats: how often the prompt is sent.
    """

    rest: bytes
    want: Want
    reserve_bytes: int
    repeats: int


def _new_shape(*request: Any) -> _Shape:
    """Check the parameters, the fields of `_Asked`, and write them.

    Raises:
        Malformed, Unsupported.
    """
    asked = _Asked(*request)
    want = _want(asked)
    max_tokens = _max_tokens(asked.max_tokens, asked.prompt_tokens, asked.max_context)
    temperature = 1.0 if asked.temperature is None else asked.temperature
    if not 0.0 <= temperature <= MAX_TEMPERATURE:
        raise Malformed(
            f"sampling_params.temperature is {temperature}, must be 0 to {MAX_TEMPERATURE:g}"
        )
    # vLLM refuses n with greedy sampling; the same prompt n times is the same question.
    repeats = want.sequences if temperature < GREEDY_BELOW else 1
    fields: dict[str, Any] = {
        "model": asked.model,
        "n": 1 if repeats > 1 else want.sequences,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": _top_p(asked.top_p),
        "top_k": _top_k(asked.top_k),
        "logprobs": want.sampled_topk,
        "cache_salt": asked.cache_salt,
    }
    if not want.named_tokens:
        fields["return_token_ids"] = True
    if asked.seed is not None:
        fields["seed"] = _in_range("sampling_params.seed", asked.seed, -MAX_SEED - 1, MAX_SEED)
    if want.prompt_logprobs:
        fields["prompt_logprobs"] = want.prompt_topk
    if want.named_tokens or want.sampled_topk:
        # Decoded strings can collide; ids as keys cannot.
        fields["return_tokens_as_token_ids"] = True
    fields |= _stop(asked.stop, asked.empty_stop_ends_nothing)
    cells = max_tokens * want.sampled_topk * want.sequences + asked.prompt_tokens * want.prompt_topk
    return _Shape(
        rest=b"," + msgspec.json.encode(fields)[1:],
        want=want,
        reserve_bytes=TOKEN_BYTES * max_tokens * want.sequences + TOPK_CELL_BYTES * cells,
        repeats=repeats,
    )


_shape: Final = functools.lru_cache(maxsize=4096)(_new_shape)
_NOT_GIVEN: Final = SamplingParams()


@functools.lru_cache(maxsize=1024)
def _shared_want(
    sequences: int,
    prompt_logprobs: bool,
    prompt_topk: int,
    sampled_topk: int,
    prompt_last: int,
    named_tokens: bool,
) -> Want:
    """One object for all samples of the same shape, so that a waiting record holds a pointer."""
    return Want(sequences, prompt_logprobs, prompt_topk, sampled_topk, prompt_last, named_tokens)


def _want(asked: _Asked) -> Want:
    prompt_topk = _in_range("topk_prompt_logprobs", asked.topk_prompt_logprobs or 0, 0, MAX_TOPK)
    wants_prompt = bool(asked.prompt_logprobs) or prompt_topk > 0
    last = asked.prompt_logprobs_last_n
    if last is not None:
        if not wants_prompt:
            raise Malformed("prompt_logprobs_last_n needs prompt_logprobs or topk_prompt_logprobs")
        _in_range("prompt_logprobs_last_n", last, 1, MAX_LAST_N)
    sequences = 1 if asked.num_samples is None else asked.num_samples
    topk = _in_range("topk_sample_logprobs", asked.topk_sample_logprobs or 0, 0, MAX_TOPK)
    return _shared_want(
        _in_range("num_samples", sequences, 1, MAX_SEQUENCES),
        wants_prompt,
        prompt_topk,
        topk,
        # The last N of a shorter prompt are all of it.
        0 if last is None or last >= asked.prompt_tokens else last,
        # Prompt scores need the prompt's ids. Where alternatives are asked for, the names are sent
        # anyway.
        not wants_prompt and (topk > 0 or asked.long_prompt),
    )


def _refuse_unsupported(request: SampleRequest) -> None:
    if request.record_stability_info:
        raise Unsupported("record_stability_info is not recorded by this gateway; send false")
    if request.prompt_alt_tokens_k:
        raise Unsupported("prompt_alt_tokens_k is not offered by this gateway; send 0")
    if given(request.target_prompt_logprobs):
        raise Unsupported("target_prompt_logprobs is not offered by this gateway; leave it out")


def _max_tokens(asked: int | None, prompt_tokens: int, max_context: int | None) -> int:
    if asked is not None and asked < 1:
        raise Malformed(f"sampling_params.max_tokens is {asked}, must be at least 1")
    if max_context is None:
        if asked is None:
            raise Malformed(
                "sampling_params.max_tokens is needed: the upstream does not say its context"
                " length (the operator can set models.max_context_length)"
            )
        return _in_range("sampling_params.max_tokens", asked, 1, MAX_TOKENS)
    if prompt_tokens + (asked or 1) > max_context:
        wish = "no max_tokens" if asked is None else f"max_tokens {asked}"
        raise Malformed(
            f"the prompt has {prompt_tokens} tokens and {wish} was asked,"
            f" the context holds {max_context} together"
        )
    return max_context - prompt_tokens if asked is None else asked


def _top_p(value: float | None) -> float:
    if value is None:
        return 1.0
    if not 0.0 < value <= 1.0:
        raise Malformed(f"sampling_params.top_p is {value}, must be above 0 and at most 1")
    return value


def _top_k(value: int | None) -> int:
    if value is None:
        return -1
    return _in_range("sampling_params.top_k", value, -1, MAX_TOP_K)


def _stop(stop: str | tuple[str | int, ...] | None, empty_ends_nothing: bool) -> dict[str, Any]:
    if stop is None:
        return {}
    entries = (stop,) if isinstance(stop, str) else stop
    if not entries:
        return {"ignore_eos": True} if empty_ends_nothing else {}
    strings = [entry for entry in entries if isinstance(entry, str)]
    if not strings:
        for token in entries:
            _in_range("sampling_params.stop", int(token), 0, MAX_TOKEN_ID)
        return {"stop_token_ids": entries}
    if len(strings) != len(entries):
        raise Unsupported("sampling_params.stop mixes strings and token ids; send one kind")
    if "" in strings:
        raise Malformed("sampling_params.stop has an empty string")
    # vLLM looks for stop strings in the text it shows, and it hides special tokens by default:
    # a stop such as <|im_end|> would never be met.
    return {"stop": strings, "skip_special_tokens": False}


def _in_range(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise Malformed(f"{name} is {value}, must be {low} to {high}")
    return value
