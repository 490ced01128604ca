"""vLLM completion bytes -> SampleArrays, without a Python object per generated token.

The parser fills flat buffers (int64, float64) that are copied into numpy arrays before anything
else happens; nothing of a parsed document leaves this module, outlives a call, or crosses an
await. A parser keeps memory of about three times its largest document, so one that met a large
body is dropped.

Shapes and field names: the recorded bodies under tests/fixtures/vllm.
"""

from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np
import simdjson

from asgi_gateway.codec import (
    PAD_LOGPROB,
    PAD_TOKEN,
    Float32s,
    Int32s,
    SampleArrays,
    Sequence,
    StopReason,
    Topk,
    Want,
)
from asgi_gateway.errors import Aborted, MissingLogprobs, Unreadable

MissingPolicy = Literal["fail", "nan"]

# A kept parser holds up to 3.5 times its largest body.
_KEEP_PARSER_BELOW_BYTES: Final = 4 << 20
_MAX_INT32: Final = 2**31 - 1
_TOKEN_ID_PREFIX: Final = "token_id:"

_STOP_REASONS: Final = {"stop": StopReason.STOP, "length": StopReason.LENGTH}

# pysimdjson says INCORRECT_TYPE with TypeError, NO_SUCH_FIELD with KeyError, a malformed document
# with ValueError or RuntimeError; a scalar where an object should be has none of its attributes; a
# number beyond float32 is a FloatingPointError.
_PARSER_ERRORS: Final = (
    ValueError,
    TypeError,
    LookupError,
    RuntimeError,
    ArithmeticError,
    AttributeError,
)
_EXCERPT_BYTES: Final = 80


class Decoder:
    """Decodes answers; owns one parser, so it belongs to one thread and is not re-entrant."""

    def __init__(self, missing_logprobs: MissingPolicy = "fail") -> None:
        self._missing = missing_logprobs
        self._parser: simdjson.Parser | None = None

    def decode(self, body: bytes, want: Want, prompt_tokens: int) -> SampleArrays:
        """Decode a 200 body of /v1/completions for a prompt of `prompt_tokens` tokens.

        Raises:
            Unreadable: the body does not parse, lacks a field, or its lengths contradict.
            MissingLogprobs: a logprob is null or absent and the policy is "fail".
            Aborted: a choice was aborted or ended for an unknown reason, or choices lack.
        """
        parser, self._parser = self._parser or simdjson.Parser(), None
        try:
            # A float64 that float32 cannot hold would become an infinity with a warning.
            with np.errstate(over="raise"):
                arrays = _answer(parser.parse(body), want, prompt_tokens, self._missing)
        except _PARSER_ERRORS as error:
            raise Unreadable(
                f"the upstream's answer does not parse: {error}"
                f" (it begins {body[:_EXCERPT_BYTES]!r})"
            ) from error
        # Not after an exception: its traceback holds proxies of the document, and a parser refuses
        # to parse again while one lives.
        if len(body) < _KEEP_PARSER_BELOW_BYTES:
            self._parser = parser
        return arrays


def _answer(doc: Any, want: Want, prompt_tokens: int, missing: MissingPolicy) -> SampleArrays:
    choices = _in_order(doc["choices"], want.sequences)
    sequences = tuple([_sequence(choice, want.sampled_topk, missing) for choice in choices])
    prompt_logprobs, prompt_topk = None, None
    if want.prompt_logprobs:
        prompt_logprobs, prompt_topk = _prompt(choices[0], want, prompt_tokens, missing)
    return SampleArrays(
        sequences=sequences,
        prompt_logprobs=prompt_logprobs,
        prompt_topk=prompt_topk,
        prompt_cache_hit_tokens=_cache_hits(doc, prompt_tokens),
    )


def _in_order(choices: Any, expected: int) -> list[Any]:
    """The choices by their `index`, which must be 0 to expected - 1, each once."""
    if len(choices) < expected:
        raise Aborted(f"the upstream sent {len(choices)} choices of {expected}")
    by_index = {_integer(choice["index"]): choice for choice in choices}
    if len(choices) != expected or by_index.keys() != set(range(expected)):
        raise Unreadable(
            f"the upstream sent {len(choices)} choices numbered {sorted(by_index)[:8]},"
            f" not 0 to {expected - 1}"
        )
    return [by_index[index] for index in range(expected)]


def _sequence(choice: Any, topk: int, missing: MissingPolicy) -> Sequence:
    reason = choice["finish_reason"]
    stop_reason = _STOP_REASONS.get(reason) if isinstance(reason, str) else None
    if stop_reason is None:
        raise Aborted(f"the upstream ended a choice with finish_reason {reason!r:.40}")
    tokens = _tokens(_required(choice, "token_ids"))
    answer = choice.get("logprobs")
    values = answer.get("token_logprobs") if answer is not None else None
    if values is not None:
        logprobs = _logprobs(values, missing)
    else:
        logprobs = np.full(tokens.size, np.nan, np.float32)
        if tokens.size:
            _absent(missing, f"there are no logprobs for {tokens.size} tokens")
    if logprobs.size != tokens.size:
        kind = MissingLogprobs if logprobs.size < tokens.size else Unreadable
        raise kind(f"token_ids has {tokens.size} entries, token_logprobs {logprobs.size}")
    alternatives = None
    if topk:
        rows = answer.get("top_logprobs") if answer is not None else None
        alternatives = _sampled_topk(rows, tokens.size, topk, missing)
    return Sequence(stop_reason, tokens, logprobs, alternatives)


def _required(choice: Any, field: str) -> Any:
    value = choice.get(field)
    if value is None:
        raise Unreadable(f"{field} is missing")
    return value


def _absent(missing: MissingPolicy, text: str) -> None:
    """What to do where the upstream gives no logprob: raise, or leave NaN for the operator."""
    if missing == "fail":
        raise MissingLogprobs(text)


def _tokens(array: Any) -> Int32s:
    wide = np.frombuffer(array.as_buffer(of_type="i"), np.int64)
    _flat("token_ids", array, wide.size)
    if wide.size and (int(wide.min()) < 0 or int(wide.max()) > _MAX_INT32):
        raise Unreadable(f"a token id is outside 0 to {_MAX_INT32}")
    return wide.astype(np.int32)


def _flat(field: str, array: Any, size: int) -> None:
    """Refuse a nested array, which as_buffer flattens without a word.

    Lengths tell, but for a list of one-element lists, which its first element tells. What is left
    (such as [1, [2]]) has the right values in the right order; looking at every element for that
    would cost a fifth of the whole decoding.
    """
    if size != len(array) or (size and not isinstance(array[0], (int, float))):
        raise Unreadable(f"{field} is a nested array")


def _logprobs(array: Any, missing: MissingPolicy) -> Float32s:
    try:
        wide = np.frombuffer(array.as_buffer(of_type="d"), np.float64)
    except TypeError:
        return _logprobs_with_nulls(array, missing)
    _flat("token_logprobs", array, wide.size)
    return wide.astype(np.float32)


def _logprobs_with_nulls(array: Any, missing: MissingPolicy) -> Float32s:
    values = [_logprob(value) for value in array]
    _absent(missing, f"{values.count(None)} of {len(values)} token_logprobs are null")
    return np.array([np.nan if value is None else value for value in values], np.float32)


def _logprob(value: Any) -> float | None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise Unreadable(f"a logprob is a {type(value).__name__}")


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Unreadable(f"an index or rank is a {type(value).__name__}")


def _sampled_topk(rows: Any, length: int, k: int, missing: MissingPolicy) -> Topk:
    """Rows of `{"token_id:N": logprob}`, best first; the sampled token may be an extra entry."""
    tokens, logprobs = _empty_topk(length, k)
    if rows is None:
        if length:
            _absent(missing, "top_logprobs is null")
        return Topk(tokens, logprobs)
    if len(rows) != length:
        raise Unreadable(f"top_logprobs has {len(rows)} rows for {length} tokens")
    for position, row in enumerate(rows):
        if row is None:
            _absent(missing, f"top_logprobs is null at position {position}")
            continue
        cells = [
            (_token_id(key, _TOKEN_ID_PREFIX), logprob)
            for key, value in row.as_dict().items()
            if (logprob := _cell(value, missing)) is not None
        ]
        _fill_row(tokens[position], logprobs[position], cells, k, rank=lambda cell: -cell[1])
    return Topk(tokens, logprobs)


def _token_id(key: str, prefix: str = "") -> int:
    digits = key.removeprefix(prefix)
    # int() would take signs, blanks, underscores and the digits of other scripts too.
    if not (key.startswith(prefix) and digits.isascii() and digits.isdigit()):
        raise Unreadable("a key of a top-k row is not a token id")
    token = int(digits)
    if token > _MAX_INT32:
        raise Unreadable(f"a token id is outside 0 to {_MAX_INT32}")
    return token


def _cell(value: Any, missing: MissingPolicy) -> float | None:
    """The logprob of a top-k cell; None for one that is left out, and so padded."""
    logprob = _logprob(value)
    if logprob is None:
        _absent(missing, "a top-k logprob is null")
    return logprob


def _prompt(
    choice: Any, want: Want, prompt_tokens: int, missing: MissingPolicy
) -> tuple[Float32s, Topk | None]:
    """Prompt logprobs and, where asked for, the k best alternatives of every position.

    vLLM gives null for the first position and then an object per position, keyed by token id; the
    prompt's own token is always among the entries and may be beyond the k best.
    """
    k = want.prompt_topk
    topk = _empty_topk(prompt_tokens, k) if k else None
    logprobs = np.full(prompt_tokens, np.nan, np.float32)
    rows = choice.get("prompt_logprobs")
    if rows is None:
        _absent(missing, "prompt_logprobs is null")
        return logprobs, Topk(*topk) if topk is not None else None
    own = _tokens(_required(choice, "prompt_token_ids"))
    if len(rows) != prompt_tokens or own.size != prompt_tokens:
        raise Unreadable(
            f"prompt_logprobs has {len(rows)} and prompt_token_ids {own.size} entries"
            f" for a prompt of {prompt_tokens}"
        )
    # The first position has no logprob; earlier ones than the last N were not asked for.
    first = max(1, prompt_tokens - want.prompt_last) if want.prompt_last else 1
    for position, row in enumerate(rows):
        if position < first:
            continue
        if row is None:
            _absent(missing, f"prompt_logprobs is null at position {position}")
            continue
        entries = row.as_dict() if k else row
        own_entry = entries.get(str(own[position]))
        logprob = None if own_entry is None else _logprob(own_entry["logprob"])
        if logprob is None:
            _absent(missing, f"no logprob of the prompt's token at position {position}")
        else:
            logprobs[position] = logprob
        if topk is not None:
            cells = _ranked(entries, k, missing)
            _fill_row(topk[0][position], topk[1][position], cells, k, rank=_by_rank)
    return logprobs, Topk(*topk) if topk is not None else None


def _ranked(
    entries: dict[str, dict[str, Any]], k: int, missing: MissingPolicy
) -> list[tuple[int, float, int]]:
    """(token, logprob, rank) of the entries that are among the k best."""
    cells = [
        (_token_id(key), logprob, _integer(entry["rank"]))
        for key, entry in entries.items()
        if (logprob := _cell(entry["logprob"], missing)) is not None
    ]
    return [cell for cell in cells if cell[2] <= k]


def _by_rank(cell: tuple[int, float, int]) -> tuple[int, float]:
    # Ranks tie where logprobs do: the better logprob, then the upstream's order, decides.
    return cell[2], -cell[1]


def _empty_topk(length: int, k: int) -> tuple[Int32s, Float32s]:
    return np.full((length, k), PAD_TOKEN, np.int32), np.full((length, k), PAD_LOGPROB, np.float32)


def _fill_row(
    tokens: Int32s, logprobs: Float32s, cells: list[Any], k: int, *, rank: Callable[[Any], Any]
) -> None:
    for column, cell in enumerate(sorted(cells, key=rank)[:k]):
        tokens[column] = cell[0]
        logprobs[column] = cell[1]


def _cache_hits(doc: Any, prompt_tokens: int) -> int:
    """`usage.prompt_tokens_details.cached_tokens`; 0 where the upstream does not say.

    It does not say for this prompt where several prompts went in one request: the usage sums them.
    """
    usage = doc.get("usage")
    if usage is None or usage.get("prompt_tokens") != prompt_tokens:
        return 0
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if details is not None else None
    return cached if type(cached) is int and 0 <= cached <= prompt_tokens else 0
