"""The slow way to read a request: what the strict decode refused.

vLLM's models take what can be converted without loss, and name what cannot. Only the recorded
shape of those errors is kept (status, type, param and the first problem of each field); where the
validation library lists one line per alternative of a union, this gives one.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from loadgen.errors import RequestError, bad_value


class Problem(NamedTuple):
    """One line of a validation error; `where` is the path below `body`."""

    kind: str
    where: str
    message: str
    given: object


_INTS: Final = ("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs")
_FLOATS: Final = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_BOOLS: Final = (
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "echo",
    "stream",
    "return_token_ids",
    "return_tokens_as_token_ids",
)
_STRINGS: Final = ("model", "request_id")
_NOT_NULL: Final = frozenset(
    ("n", "min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
)
_TRUTHS: Final = {
    **dict.fromkeys((1, "1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys((0, "0", "false", "f", "no", "n", "off"), False),
}
_SEED_MAX: Final = 2**63 - 1


def read_lax(body: bytes) -> dict[str, Any]:
    """The request's object with known fields converted; raises RequestError if one cannot be."""
    fields = _object(body)
    for name in ("prompt_logprobs", "logprobs"):
        if isinstance(fields.get(name), str):
            raise bad_value(f"`{name}` must be an integer.", name, fields[name])
    if fields.get("prompt") in (None, ""):
        raise bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    problems: list[Problem] = []
    for names, convert in (
        (("prompt",), _prompt),
        (_INTS, _int),
        (_FLOATS, _float),
        (_BOOLS, _bool),
        (_STRINGS, _string),
        (("stop",), _stop),
        (("stop_token_ids",), _ids),
    ):
        for name in names:
            if name in fields and (fields[name] is not None or name in _NOT_NULL):
                try:
                    fields[name] = convert(fields[name], name)
                except _InvalidError as invalid:
                    problems.append(invalid.problem)
    seed = fields.get("seed")
    if isinstance(seed, int) and seed > _SEED_MAX:
        limit = f"Input should be less than or equal to {_SEED_MAX}"
        problems.append(Problem("less_than_equal", "seed", limit, seed))
    elif isinstance(seed, int) and seed < -_SEED_MAX - 1:
        limit = f"Input should be greater than or equal to {-_SEED_MAX - 1}"
        problems.append(Problem("greater_than_equal", "seed", limit, seed))
    if problems:
        raise _refusal(problems)
    return fields


class _InvalidError(Exception):
    def __init__(self, kind: str, where: str, message: str, given: object) -> None:
        super().__init__(message)
        self.problem = Problem(kind, where, message, given)


def _object(body: bytes) -> dict[str, Any]:
    if not body:
        raise _refusal([Problem("missing", "", "Field required", None)])
    try:
        decoded = json.loads(body)
    except json.JSONDecodeError as error:
        line = {
            "type": "json_invalid",
            "loc": f"body.{error.pos}",
            "msg": "JSON decode error",
            "input": "<dict of 0 items>",
            "ctx": {"error": error.msg},
        }
        raise RequestError(
            f"1 validation error:\n  {line}", kind="Bad Request", param=f"body.{error.pos}"
        ) from None
    except (ValueError, RecursionError):
        # Bytes that are no UTF-8, integers of thousands of digits, nesting without end.
        raise RequestError("There was an error parsing the body", kind="Bad Request") from None
    if not isinstance(decoded, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise _refusal([Problem("model_attributes_type", "", message, decoded)])
    return decoded


def _refusal(problems: list[Problem]) -> RequestError:
    lines = [
        {
            "type": problem.kind,
            "loc": f"body.{problem.where}" if problem.where else "body",
            "msg": problem.message,
            "input": _shown(problem.given),
        }
        for problem in problems
    ]
    plural = "error" if len(lines) == 1 else "errors"
    message = "\n  ".join([f"{len(lines)} validation {plural}:", *map(str, lines)])
    return RequestError(message, kind="Bad Request", param=str(lines[0]["loc"]))


def _shown(given: object) -> str:
    if isinstance(given, list | dict):
        return f"<{type(given).__name__} of {len(given)} items>"
    return str(given)


def _int(given: object, where: str) -> int:
    if isinstance(given, int):
        return int(given)
    if isinstance(given, float):
        if given.is_integer():
            return int(given)
        message = "Input should be a valid integer, got a number with a fractional part"
        raise _InvalidError("int_from_float", where, message, given)
    if isinstance(given, str):
        try:
            return int(given)
        except ValueError:
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise _InvalidError("int_parsing", where, message, given) from None
    raise _InvalidError("int_type", where, "Input should be a valid integer", given)


def _float(given: object, where: str) -> float:
    if isinstance(given, int | float):
        return float(given)
    if isinstance(given, str):
        try:
            return float(given)
        except ValueError:
            message = "Input should be a valid number, unable to parse string as a number"
            raise _InvalidError("float_parsing", where, message, given) from None
    raise _InvalidError("float_type", where, "Input should be a valid number", given)


def _bool(given: object, where: str) -> bool:
    key = given.lower() if isinstance(given, str) else given
    if isinstance(key, str | int | float):
        if key in _TRUTHS:
            return _TRUTHS[key]
        message = "Input should be a valid boolean, unable to interpret input"
        raise _InvalidError("bool_parsing", where, message, given)
    raise _InvalidError("bool_type", where, "Input should be a valid boolean", given)


def _string(given: object, where: str) -> str:
    if isinstance(given, str):
        if not given.isascii() and any("\ud800" <= character <= "\udfff" for character in given):
            message = "Input should be a valid string, unable to parse raw data as a unicode string"
            raise _InvalidError("string_unicode", where, message, "")
        return given
    raise _InvalidError("string_type", where, "Input should be a valid string", given)


def _stop(given: object, where: str) -> str | list[str]:
    if isinstance(given, list):
        return [_string(item, f"{where}.{index}") for index, item in enumerate(given)]
    return _string(given, where)


def _ids(given: object, where: str) -> list[int]:
    if not isinstance(given, list):
        raise _InvalidError("list_type", where, "Input should be a valid list", given)
    return [_int(item, f"{where}.{index}") for index, item in enumerate(given)]


def _prompt(given: object, where: str) -> str | list[Any]:
    if isinstance(given, str):
        return _string(given, where)
    if not isinstance(given, list):
        raise _InvalidError("list_type", where, "Input should be a valid list", given)
    if given and all(isinstance(item, str) for item in given):
        return [_string(item, f"{where}.{index}") for index, item in enumerate(given)]
    if given and all(isinstance(item, list) for item in given):
        return [_prompt_ids(item, f"{where}.{index}") for index, item in enumerate(given)]
    return _prompt_ids(given, where)


def _prompt_ids(given: list[Any], where: str) -> list[int]:
    ids = _ids(given, where)
    for index, token_id in enumerate(ids):
        if token_id < 0:
            message = "Input should be greater than or equal to 0"
            raise _InvalidError("greater_than_equal", f"{where}.{index}", message, token_id)
    return ids
