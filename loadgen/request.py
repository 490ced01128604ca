"""A completion request, read and checked as vLLM does it.

The common case is one strict, typed decode. Only what that refuses goes to `lax`, which finds out
whether vLLM would have let it pass (`"4"`, `4.0` and `true` are ints to it) or what it would have
answered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from loadgen.answers import GREEDY_BELOW, MAX_TOKENS
from loadgen.errors import RequestError, bad_value
from loadgen.lax import read_lax
from loadgen.tape import TOP_LOGPROBS_CAP

N_CAP: Final = 16_384
"""vLLM's own cap on choices for one prompt."""

TokenId = Annotated[int, msgspec.Meta(ge=0)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Asked(msgspec.Struct, gc=False):
    """The request's fields that matter here; vLLM ignores unknown ones too."""

    prompt: str | list[TokenId | list[TokenId] | str] | None = None
    model: str | None = None
    request_id: str | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    echo: bool | None = None
    stream: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class Limits(NamedTuple):
    """What the served model allows. Lengths in tokens."""

    models: tuple[str, ...]
    max_model_len: int
    vocab: int
    any_adapter: bool = False


class Job(NamedTuple):
    """A request that will be answered."""

    asked: Asked
    model: str
    prompts: list[list[int]]
    max_tokens: list[int]
    """Per prompt, clamped to what is left of the context."""
    temperature: float
    stop: Sequence[str]
    stop_token_ids: frozenset[int]


# What vLLM 0.32.0 takes, seen; its documentation says 1 to 1,024 characters.
_SALT: Final = re.compile(r"[^@/\\\0]{1,128}")
_decoder: Final = msgspec.json.Decoder(Asked)


def read(body: bytes, content_type: bytes) -> Asked:
    """The request; raises RequestError for what vLLM would not read."""
    if content_type.split(b";", 1)[0].strip().lower() != b"application/json":
        raise RequestError(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            kind="Bad Request",
        )
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError:
        return msgspec.convert(read_lax(body), Asked)


def check(asked: Asked, limits: Limits) -> Job:
    """The request as a job; raises RequestError, in vLLM's order of checks as far as it shows."""
    _check_logprobs(asked)
    _check_salt(asked)
    model = asked.model or limits.models[0]
    if model not in limits.models and not limits.any_adapter:
        aliases = ", ".join(limits.models)
        raise RequestError(
            f"The model `{model}` does not exist. Valid aliases: {aliases}.",
            status=404,
            kind="NotFoundError",
            param="model",
        )
    if asked.echo:
        raise bad_value("The stand-in does not echo prompts.", "echo")
    if asked.stream:
        raise bad_value("The stand-in does not stream.", "stream")
    prompts = _prompts(asked.prompt)
    wanted = MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    clamped = [_clamped(prompt, wanted, limits.max_model_len) for prompt in prompts]
    _check_sampling(asked, clamped, limits.vocab)
    for prompt in prompts:
        largest = _largest(prompt)
        if largest >= limits.vocab:
            raise RequestError(f"Token id {largest} is out of vocabulary")
    stop = asked.stop or ()
    return Job(
        asked,
        model,
        prompts,
        clamped,
        1.0 if asked.temperature is None else asked.temperature,
        (stop,) if isinstance(stop, str) else stop,
        frozenset(asked.stop_token_ids or ()),
    )


def prompt_digest(prompt: Sequence[int]) -> str:
    """What arrivals are counted under where they are counted by prompt, not by id."""
    return f"prompt-{blake2b(msgspec.json.encode(prompt), digest_size=8).hexdigest()}"


def _prompts(prompt: str | list[Any] | None) -> list[list[int]]:
    """One id list per prompt. There is no tokenizer: a string is its UTF-8 bytes."""
    if prompt is None or prompt == "":
        raise bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, str):
        return [list(prompt.encode())]
    if not prompt:
        raise RequestError("You must pass at least one prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    prompts = [list(p.encode()) if isinstance(p, str) else p for p in prompt]
    for index, ids in enumerate(prompts):
        if isinstance(ids, int):
            raise _mixed(index)
        if not ids:
            raise RequestError("The decoder prompt cannot be empty")
    return prompts


def _largest(prompt: list[int]) -> int:
    """The largest id. The decode lets ids and lists mix, and only this full pass notices."""
    try:
        return max(prompt)
    except TypeError:
        raise _mixed(next(i for i, p in enumerate(prompt) if not isinstance(p, int))) from None


def _mixed(index: int) -> RequestError:
    where = f"body.prompt.{index}"
    line = {"type": "int_type", "loc": where, "msg": "Input should be a valid integer"}
    return RequestError(f"1 validation error:\n  {line}", kind="Bad Request", param=where)


def _clamped(prompt: list[int], max_tokens: int, max_model_len: int) -> int:
    length = len(prompt)
    if length > max_model_len:
        raise bad_value(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {length} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            length,
        )
    return min(max_tokens, max_model_len - length)


def _check_salt(asked: Asked) -> None:
    salt = asked.cache_salt
    if salt is not None and not _SALT.fullmatch(salt):
        raise bad_value(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/',"
            r" '\\', or NUL.",
            "cache_salt",
        )


def _check_logprobs(asked: Asked) -> None:
    """vLLM looks at these before it reads anything else."""
    if asked.prompt_logprobs is not None:
        if asked.stream and asked.prompt_logprobs != 0:
            raise bad_value(
                "`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs"
            )
        if asked.prompt_logprobs < -1:
            raise bad_value(
                "`prompt_logprobs` must be a positive value or -1.",
                "prompt_logprobs",
                asked.prompt_logprobs,
            )
    if asked.logprobs is not None and asked.logprobs < -1:
        raise bad_value("`logprobs` must be a positive value.", "logprobs", asked.logprobs)


def _check_sampling(asked: Asked, clamped: list[int], vocab: int) -> None:
    if asked.n < 1:
        raise RequestError(f"n must be at least 1, got {asked.n}.")
    if asked.n > N_CAP:
        raise RequestError(f"n must be at most {N_CAP}, got {asked.n}.")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(asked, name)
        if value is not None and not -2.0 <= value <= 2.0:
            raise RequestError(f"{name} must be in [-2, 2], got {value}.")
    if asked.repetition_penalty is not None and asked.repetition_penalty <= 0.0:
        raise RequestError(
            f"repetition_penalty must be greater than zero, got {asked.repetition_penalty}."
        )
    temperature = asked.temperature
    if temperature is not None:
        if temperature < 0.0:
            raise bad_value(
                f"temperature must be non-negative, got {temperature}.", "temperature", temperature
            )
        if temperature > 2.0:
            raise bad_value(
                f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature
            )
    if asked.top_p is not None and not 0.0 < asked.top_p <= 1.0:
        raise bad_value(f"top_p must be in (0, 1], got {asked.top_p}.", "top_p", asked.top_p)
    if asked.top_k is not None and asked.top_k < -1:
        raise RequestError(f"top_k must be 0 (disable), or at least 1, got {asked.top_k}.")
    if asked.min_p is not None and not 0.0 <= asked.min_p <= 1.0:
        raise RequestError(f"min_p must be in [0, 1], got {asked.min_p}.")
    for count in clamped:
        if count < 1:
            raise bad_value(f"max_tokens must be at least 1, got {count}.", "max_tokens", count)
        if not 0 <= asked.min_tokens <= count:
            raise RequestError(
                f"min_tokens must be between 0 and max_tokens={count}, got {asked.min_tokens}."
            )
    for name, label in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
        k = getattr(asked, name)
        if k is not None:
            k = vocab if k == -1 else k
            if k > TOP_LOGPROBS_CAP:
                raise bad_value(
                    f"Requested {label} logprobs of {k}, which is greater than max allowed: "
                    f"{TOP_LOGPROBS_CAP}",
                    name,
                    k,
                )
    if asked.stop is not None and "" in (
        [asked.stop] if isinstance(asked.stop, str) else asked.stop
    ):
        raise RequestError("stop cannot contain an empty string.")
    if asked.n > 1 and temperature is not None and temperature < GREEDY_BELOW:
        raise RequestError(f"n must be 1 when using greedy sampling, got {asked.n}.")
