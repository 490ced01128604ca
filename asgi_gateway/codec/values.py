"""Single fields of a parsed answer, checked: what both ways of decoding have in common.

A parsed value is whatever the parser gives: a proxy of an array or object, or a plain Python value.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from asgi_gateway.codec import FEW, Float32s, Int32s, StopReason
from asgi_gateway.errors import Aborted, MissingLogprobs, Unreadable

MissingPolicy = Literal["fail", "nan"]

MAX_INT32: Final = 2**31 - 1
TOKEN_ID_PREFIX: Final = "token_id:"
_DIGITS: Final = b"0123456789"
_NAME: Final = b",token_id:"
_TEN: Final = 10
# So few values are packed by Python sooner than numpy's calls are made.
_PACK_IDS: Final = tuple([struct.Struct(f"<{n}I").pack for n in range(FEW + 1)])
_PACK_FLOATS: Final = tuple([struct.Struct(f"<{n}f").pack for n in range(FEW + 1)])
_INT64S: Final = tuple([struct.Struct(f"={n}q").unpack for n in range(FEW + 1)])
_DOUBLES: Final = tuple([struct.Struct(f"={n}d").unpack for n in range(FEW + 1)])
_INT32: Final = np.dtype("<i4")
_FLOAT32: Final = np.dtype("<f4")
# What the parser says of a value that is missing or of another type, and a packer of one that is
# out of range.
_NOT_FEW: Final = (LookupError, TypeError, AttributeError, struct.error, OverflowError)
_STOP_REASONS: Final = {"stop": StopReason.STOP, "length": StopReason.LENGTH}


def in_order(choices: Any, expected: int) -> list[Any]:
    """The choices by their `index`, which must be 0 to expected - 1, each once."""
    if expected == len(choices) == 1:
        only = choices[0]
        number = only["index"]
        if number == 0 and type(number) is int:
            return [only]
    if len(choices) < expected:
        raise Aborted(f"the upstream sent {len(choices)} choices of {expected}")
    by_index = {integer(choice["index"]): choice for choice in choices}
    if len(choices) != expected or by_index.keys() != set(range(expected)):
        raise Unreadable(
            f"the upstream sent {len(choices)} choices numbered {sorted(by_index)[:8]},"
            f" not 0 to {expected - 1}"
        )
    return [by_index[index] for index in range(expected)]


def stop_reason(choice: Any) -> StopReason:
    """Why a choice ended.

    Raises:
        Aborted: it did not end by itself.
    """
    reason = choice["finish_reason"]
    found = _STOP_REASONS.get(reason) if isinstance(reason, str) else None
    if found is None:
        raise Aborted(f"the upstream ended a choice with finish_reason {reason!r:.40}")
    return found


def same_length(tokens: Int32s, logprobs: Float32s) -> None:
    if logprobs.size != tokens.size:
        kind = MissingLogprobs if logprobs.size < tokens.size else Unreadable
        raise kind(f"token_ids has {tokens.size} entries, token_logprobs {logprobs.size}")


def required(choice: Any, field: str) -> Any:
    value = choice.get(field)
    if value is None:
        raise Unreadable(f"{field} is missing")
    return value


def token_id(key: str, prefix: str = "") -> int:
    """The id that a string names."""
    digits = key.removeprefix(prefix)
    # int() would take signs, blanks, underscores and the digits of other scripts too.
    if not (key.startswith(prefix) and digits.isascii() and digits.isdigit()):
        raise Unreadable("a key of a top-k row is not a token id")
    token = int(digits)
    if token > MAX_INT32:
        raise Unreadable(f"a token id is outside 0 to {MAX_INT32}")
    return token


def named_ids(array: Any) -> Int32s:
    """A parsed list of `token_id:N` strings as int32."""
    # OverflowError where one is too large.
    return np.array(_named(array.as_list()), np.int32)


def _named(names: list[Any]) -> list[int]:
    try:
        text = ",".join(["", *names])
    except TypeError:
        raise Unreadable("a token is no string") from None
    if text.encode().translate(None, _DIGITS) == _NAME * len(names):
        found = text.split(_NAME.decode())[1:]
        if "" not in found and max(map(len, found), default=0) <= _TEN:
            return list(map(int, found))
    return [token_id(name, TOKEN_ID_PREFIX) for name in names]


def few(choice: Any, *, named: bool) -> tuple[bytes, bytes] | None:
    """A choice's ids and logprobs where they are at most FEW and as many, packed little-endian.

    None where they are others, or no such lists. In one function, as calls would be a tenth of what
    a short answer takes.

    Raises:
        Unreadable: a name is none.
    """
    try:
        answer = choice["logprobs"]
        ids, logprobs = answer["tokens"] if named else choice["token_ids"], answer["token_logprobs"]
        length = len(ids)
        if length > FEW or len(logprobs) != length:
            return None
        # as_buffer flattens nested arrays: see `_flat`.
        if length and not (type(logprobs[0]) is float and (named or type(ids[0]) is int)):
            return None
        # TypeError for all that is no integer, and no number. Through a buffer numbers become
        # objects sooner than by as_list.
        numbers = _named(ids.as_list()) if named else _INT64S[length](ids.as_buffer(of_type="i"))
        tokens = _PACK_IDS[length](*numbers)
        # Rounds as numpy does; OverflowError where that would make an infinity.
        values = _PACK_FLOATS[length](*_DOUBLES[length](logprobs.as_buffer(of_type="d")))
    except _NOT_FEW:
        return None
    # Below 2^31 the highest byte of each has its highest bit clear.
    return (tokens, values) if tokens[3::4].isascii() else None


def _packed(pack: Callable[..., bytes], array: Any) -> bytes | None:
    """None where a value is out of range or is a nested array."""
    try:
        return pack(*array.as_list())
    except (struct.error, OverflowError):
        return None


def absent(missing: MissingPolicy, text: str) -> None:
    """What to do where the upstream gives no logprob: raise, or leave NaN for the operator."""
    if missing == "fail":
        raise MissingLogprobs(text)


def ids(array: Any) -> Int32s:
    """A parsed list of token ids, int32."""
    # TypeError for all that is no integer.
    numbers = array.as_buffer(of_type="i")
    if (length := len(array)) <= FEW:
        packed = _packed(_PACK_IDS[length], array)
        if packed is not None and packed[3::4].isascii():
            return np.frombuffer(packed, _INT32)
    wide = np.frombuffer(numbers, np.int64)
    _flat("token_ids", array, wide.size)
    if wide.size and (int(wide.min()) < 0 or int(wide.max()) > MAX_INT32):
        raise Unreadable(f"a token id is outside 0 to {MAX_INT32}")
    return wide.astype(np.int32)


def _flat(field: str, array: Any, size: int) -> None:
    """Refuse a nested array, which as_buffer flattens without a word.

    Lengths tell, but for a list of one-element lists, which its first element tells. What is left
    (such as [1, [2]]) has the right values in the right order; looking at every element for that
    would cost a fifth of the whole decoding.
    """
    if size != len(array) or (size and not isinstance(array[0], (int, float))):
        raise Unreadable(f"{field} is a nested array")


def floats(array: Any, missing: MissingPolicy) -> Float32s:
    """A parsed list of logprobs, float32; NaN for null where the policy allows it."""
    try:
        numbers = array.as_buffer(of_type="d")
    except TypeError:
        return _logprobs_with_nulls(array, missing)
    if (length := len(array)) <= FEW:
        packed = _packed(_PACK_FLOATS[length], array)
        if packed is not None:
            return np.frombuffer(packed, _FLOAT32)
    wide = np.frombuffer(numbers, np.float64)
    _flat("token_logprobs", array, wide.size)
    return narrowed(wide)


def narrowed(wide: npt.NDArray[Any]) -> Float32s:
    """As float32; FloatingPointError where that would make an infinity."""
    with np.errstate(over="raise"):
        return wide.astype(np.float32)


def _logprobs_with_nulls(array: Any, missing: MissingPolicy) -> Float32s:
    values = [logprob(value) for value in array]
    absent(missing, f"{values.count(None)} of {len(values)} token_logprobs are null")
    return narrowed(np.array([np.nan if value is None else value for value in values], np.float64))


def logprob(value: Any) -> float | None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise Unreadable(f"a logprob is a {type(value).__name__}")


def integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Unreadable(f"an index or rank is a {type(value).__name__}")


def cache_hits(doc: Any, prompt_tokens: int) -> int:
    """`usage.prompt_tokens_details.cached_tokens`; 0 where the upstream does not say.

    It does not say for this prompt where several prompts went in one request: the usage sums them.
    """
    usage = doc.get("usage")
    if usage is None or usage.get("prompt_tokens") != prompt_tokens:
        return 0
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if details is not None else None
    return cached if type(cached) is int and 0 <= cached <= prompt_tokens else 0
