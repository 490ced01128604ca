"""A sample request -> the body of vLLM's /v1/completions, with the prompt spliced in as it came.

Every parameter is sent, answered by masking later, or refused by name; none is accepted and
ignored. Values that vLLM would otherwise fill in from a model's generation_config (temperature,
top_p, top_k, max_tokens) are always sent.
"""

import functools
import re
from typing import Any, Final

import msgspec

from asgi_gateway.codec import Want
from asgi_gateway.errors import Malformed, Unsupported
from asgi_gateway.protocol import Chunk, SampleRequest, SamplingParams, given

MAX_TOKEN_ID: Final = 2**31 - 1
# vLLM's own limits: choices and prompts per request, and what counts as greedy. Its limit of
# alternatives per position (--max-logprobs) is the operator's, and it answers for that itself.
MAX_SEQUENCES: Final = 16_384
MAX_PROMPTS: Final = 1024
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

# What the repetition of one prompt may make of it; vllm-router takes 512 MiB.
MAX_REPEATED_BYTES: Final = 64 << 20
# The upstream's integers: vLLM clamps max_tokens, vllm-router takes 32 bits.
MAX_TOKENS: Final = 2**31 - 1

_BLANKS: Final = b" \t\r\n"
_DIGITS_TO_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_TEN_DIGITS: Final = b"0000000000"
_LONG_NUMBER: Final = re.compile(rb"[0-9]{10,}")

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
    params = request.sampling_params or SamplingParams()
    _refuse_unsupported(request)
    tokens, prompt_tokens = prompt_ids(request.prompt.chunks)
    want = _want(request, prompt_tokens)
    max_tokens = _max_tokens(params.max_tokens, prompt_tokens, max_context)
    if _names_are_leaner(want, len(tokens), max_tokens):
        want = _shared_want(want.sequences, False, 0, want.sampled_topk, 0, named_tokens=True)
    temperature = 1.0 if params.temperature is None else params.temperature
    if not 0.0 <= temperature <= MAX_TEMPERATURE:
        raise Malformed(
            f"sampling_params.temperature is {temperature}, must be 0 to {MAX_TEMPERATURE:g}"
        )
    fields: dict[str, Any] = {
        "model": model,
        "n": want.sequences,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": _top_p(params.top_p),
        "top_k": _top_k(params.top_k),
        "logprobs": want.sampled_topk,
        "cache_salt": cache_salt,
    }
    if not want.named_tokens:
        fields["return_token_ids"] = True
    if params.seed is not None:
        fields["seed"] = _in_range("sampling_params.seed", params.seed, -MAX_SEED - 1, MAX_SEED)
    if want.prompt_logprobs:
        fields["prompt_logprobs"] = want.prompt_topk
    if want.named_tokens or want.sampled_topk:
        # Decoded strings can collide; ids as keys cannot.
        fields["return_tokens_as_token_ids"] = True
    fields |= _stop(params.stop, empty_stop_ends_nothing)
    if want.sequences > 1 and temperature < GREEDY_BELOW:
        # vLLM refuses n with greedy sampling; the same prompt n times is the same question.
        tokens = _repeated(tokens, want.sequences)
        fields["n"] = 1
    cells = max_tokens * want.sampled_topk * want.sequences + prompt_tokens * want.prompt_topk
    return UpstreamRequest(
        body=b'{"prompt":' + tokens + b"," + msgspec.json.encode(fields)[1:],
        want=want,
        prompt_tokens=prompt_tokens,
        reserve_bytes=TOKEN_BYTES * max_tokens * want.sequences + TOPK_CELL_BYTES * cells,
    )


def prompt_ids(chunks: list[Chunk]) -> tuple[bytes, int]:
    """The chunks' token ids as one JSON array without blanks, and how many there are.

    Raises:
        Malformed: an id that is not an integer of 0 to 2^31 - 1, or no id at all.
        Unsupported: an image or audio chunk.
    """
    pieces: list[bytes] = []
    count = 0
    for position, chunk in enumerate(chunks):
        kind = chunk.kind()
        if kind != "encoded_text":
            raise Unsupported(
                f"prompt.chunks[{position}] is of type {kind!r:.40}; only encoded_text is served"
            )
        if not given(chunk.tokens):
            raise Malformed(f"prompt.chunks[{position}].tokens is missing")
        digits = _digits(bytes(chunk.tokens), position)
        if digits:
            pieces.append(digits)
            count += digits.count(b",") + 1
    if not count:
        raise Malformed("prompt has no tokens; at least one is needed")
    return b"[" + b",".join(pieces) + b"]", count


def _digits(raw: bytes, position: int) -> bytes:
    """What is inside the brackets of a flat JSON array of token ids, without blanks.

    The JSON decoder has checked syntax, so nothing but digits, commas and one pair of brackets
    means a flat array of integers without sign, fraction or exponent. It would pass null, true,
    1.5 and nested lists, and vLLM would read some of them as other prompts.
    """
    zeros = raw.translate(_DIGITS_TO_ZERO, _BLANKS)
    if zeros.translate(None, b"0,") != b"[]":
        raise Malformed(
            f"prompt.chunks[{position}].tokens must be a flat list of integers,"
            f" each 0 to {MAX_TOKEN_ID}"
        )
    digits = raw.translate(None, _BLANKS + b"[]")
    if _TEN_DIGITS in zeros:
        for number in _LONG_NUMBER.findall(digits):
            # Compared as text first: a number of a million digits must cost nothing.
            if len(number) > 10 or int(number) > MAX_TOKEN_ID:
                raise Malformed(
                    f"prompt.chunks[{position}].tokens has the id {number[:20].decode()},"
                    f" the largest is {MAX_TOKEN_ID}"
                )
    return digits


def _repeated(tokens: bytes, times: int) -> bytes:
    """A list of `times` equal prompts, bounded: a small request must not become gigabytes."""
    if times > MAX_PROMPTS or len(tokens) * times > MAX_REPEATED_BYTES:
        raise Malformed(
            f"num_samples is {times}: at temperature 0 the prompt is sent that often, at most"
            f" {MAX_PROMPTS} times and {MAX_REPEATED_BYTES} bytes, here {len(tokens)} bytes each"
        )
    return b"[" + b",".join([tokens] * times) + b"]"


@functools.lru_cache(maxsize=1024)
def _shared_want(
    sequences: int,
    prompt_logprobs: bool,
    prompt_topk: int,
    sampled_topk: int,
    prompt_last: int,
    named_tokens: bool = False,
) -> Want:
    """One object for all samples of the same shape, so that a waiting record holds a pointer."""
    return Want(sequences, prompt_logprobs, prompt_topk, sampled_topk, prompt_last, named_tokens)


def _names_are_leaner(want: Want, prompt_bytes: int, max_tokens: int) -> bool:
    """Whether the answer is surely smaller with ids as `token_id:N` strings in its logprobs.

    `return_token_ids` sends the prompt back once in every choice. Without it a generated token
    costs up to NAMED_TOKEN_BYTES more, whatever the tokens are, so what is compared is what the
    prompt takes against what the longest answer could. Where alternatives are asked for the names
    are sent anyway. Prompt scores need the prompt's ids.
    """
    if want.prompt_logprobs:
        return False
    return want.sampled_topk > 0 or prompt_bytes > NAMED_TOKEN_BYTES * max_tokens


def _want(request: SampleRequest, prompt_tokens: int) -> Want:
    prompt_topk = _in_range("topk_prompt_logprobs", request.topk_prompt_logprobs or 0, 0, MAX_TOPK)
    wants_prompt = bool(request.prompt_logprobs) or prompt_topk > 0
    last = request.prompt_logprobs_last_n
    if last is not None:
        if not wants_prompt:
            raise Malformed("prompt_logprobs_last_n needs prompt_logprobs or topk_prompt_logprobs")
        _in_range("prompt_logprobs_last_n", last, 1, MAX_LAST_N)
    return _shared_want(
        _in_range(
            "num_samples",
            1 if request.num_samples is None else request.num_samples,
            1,
            MAX_SEQUENCES,
        ),
        wants_prompt,
        prompt_topk,
        _in_range("topk_sample_logprobs", request.topk_sample_logprobs or 0, 0, MAX_TOPK),
        # The last N of a shorter prompt are all of it.
        0 if last is None or last >= prompt_tokens else last,
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


def _stop(stop: str | list[str | int] | None, empty_ends_nothing: bool) -> dict[str, Any]:
    if stop is None:
        return {}
    entries = [stop] if isinstance(stop, str) else stop
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
