"""What decoding has to give, written a second time: json, lists and no care for speed.

It shares nothing with asgi_gateway.codec.decode but the names of the policy, so that a test can
hold one against the other on recorded, invented and damaged bodies alike.
"""

import json
import math
import struct
from typing import Any, NamedTuple

from asgi_gateway.codec import SampleArrays, Topk, Want

PADDING = (0, -99999.0)
INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38

Table = list[list[tuple[int, float]]]


class Refused(Exception):
    """Nothing of this body may be delivered."""


class Sampled(NamedTuple):
    reason: int
    tokens: list[int]
    logprobs: list[float]
    topk: Table | None


class Expected(NamedTuple):
    sequences: list[Sampled]
    prompt_logprobs: list[float] | None
    prompt_topk: Table | None
    cache_hits: int


def expected(body: bytes, want: Want, prompt_tokens: int, missing: str = "fail") -> Expected:
    """The answer as lists; NaN where there is no logprob and `missing` is "nan"."""
    doc = json.loads(body)
    choices = _list(_dict(doc).get("choices"))
    ordered = {_int(_dict(choice).get("index")): choice for choice in choices}
    _refuse_unless(len(choices) == want.sequences)
    _refuse_unless(sorted(ordered) == list(range(want.sequences)))
    sequences = [_sampled(ordered[i], want, missing) for i in range(want.sequences)]
    prompt: tuple[list[float] | None, Table | None] = (None, None)
    if want.prompt_logprobs:
        prompt = _prompt(ordered[0], want, prompt_tokens, missing)
    return Expected(sequences, *prompt, _cache_hits(doc, prompt_tokens))


def check(arrays: SampleArrays, right: Expected) -> None:
    """Every value and its bit pattern, every dtype and shape."""
    assert len(arrays.sequences) == len(right.sequences)
    for sequence, sampled in zip(arrays.sequences, right.sequences, strict=True):
        assert sequence.stop_reason == sampled.reason
        assert sequence.tokens.dtype.str == "<i4"
        assert sequence.tokens.shape == (len(sampled.tokens),)
        assert sequence.tokens.tolist() == sampled.tokens
        assert sequence.logprobs.dtype.str == "<f4"
        assert sequence.logprobs.tobytes() == _float32s(sampled.logprobs)
        _check_table(sequence.topk, sampled.topk)
    if right.prompt_logprobs is None:
        assert arrays.prompt_logprobs is None
    else:
        assert arrays.prompt_logprobs is not None
        assert arrays.prompt_logprobs.dtype.str == "<f4"
        assert arrays.prompt_logprobs.tobytes() == _float32s(right.prompt_logprobs)
    _check_table(arrays.prompt_topk, right.prompt_topk)
    assert arrays.prompt_cache_hit_tokens == right.cache_hits
    assert type(arrays.prompt_cache_hit_tokens) is int


def _check_table(topk: Topk | None, rows: Table | None) -> None:
    if rows is None:
        assert topk is None
        return
    assert topk is not None
    k = len(rows[0]) if rows else topk.tokens.shape[1]
    assert topk.tokens.shape == topk.logprobs.shape == (len(rows), k)
    assert topk.tokens.dtype.str == "<i4"
    assert topk.logprobs.dtype.str == "<f4"
    assert topk.tokens.tolist() == [[token for token, _ in row] for row in rows]
    assert topk.logprobs.tobytes() == _float32s([value for row in rows for _, value in row])


def _sampled(choice: Any, want: Want, missing: str) -> Sampled:
    reasons = {"stop": 0, "length": 1}
    reason = choice.get("finish_reason")
    _refuse_unless(isinstance(reason, str) and reason in reasons)
    tokens = _ids(choice.get("token_ids"))
    holder = choice.get("logprobs")
    holder = {} if holder is None else _dict(holder)
    values = holder.get("token_logprobs")
    if values is None:
        values = [None] * len(tokens)
    logprobs = [_float(value, missing) for value in _flat(values)]
    _refuse_unless(len(logprobs) == len(tokens))
    table = None
    if want.sampled_topk:
        rows = holder.get("top_logprobs")
        rows = [None] * len(tokens) if rows is None else _list(rows)
        _refuse_unless(len(rows) == len(tokens))
        table = [_sampled_row(row, want.sampled_topk, missing) for row in rows]
    return Sampled(reasons[reason], tokens, logprobs, table)


def _sampled_row(row: Any, k: int, missing: str) -> list[tuple[int, float]]:
    if row is None:
        _refuse_unless(missing == "nan")
        row = {}
    cells = []
    for key, value in _dict(row).items():
        _refuse_unless(key[:9] == "token_id:")
        logprob = _float(value, missing)
        if not math.isnan(logprob):
            cells.append((_id_in_text(key[9:]), logprob))
    best: list[tuple[int, float]] = []
    while cells and len(best) < k:
        best.append(cells.pop(cells.index(max(cells, key=lambda cell: cell[1]))))
    return best + [PADDING] * (k - len(best))


def _prompt(choice: Any, want: Want, length: int, missing: str) -> tuple[list[float], Table | None]:
    k = want.prompt_topk
    values = [math.nan] * length
    table: Table = [[PADDING] * k for _ in range(length)]
    rows = choice.get("prompt_logprobs")
    if rows is None:
        _refuse_unless(missing == "nan")
        return values, table if k else None
    own = _ids(choice.get("prompt_token_ids"))
    _refuse_unless(len(_list(rows)) == length == len(own))
    for position in range(1, length):
        if want.prompt_last and position < length - want.prompt_last:
            continue
        row = rows[position]
        if row is None:
            _refuse_unless(missing == "nan")
            continue
        entry = _dict(row).get(str(own[position]))
        values[position] = _float(entry and _dict(entry)["logprob"], missing)
        if k:
            table[position] = _prompt_row(row, k, missing)
    return values, table if k else None


def _prompt_row(row: dict[str, Any], k: int, missing: str) -> list[tuple[int, float]]:
    cells = []
    for key, entry in row.items():
        logprob = _float(_dict(entry)["logprob"], missing)
        if not math.isnan(logprob):
            cells.append((_int(entry["rank"]), -logprob, _id_in_text(key)))
    ranked = [cell for cell in cells if cell[0] <= k]
    best: list[tuple[int, float, int]] = []
    while ranked and len(best) < k:
        best.append(ranked.pop(ranked.index(min(ranked, key=lambda cell: cell[:2]))))
    return [(token, -negated) for _, negated, token in best] + [PADDING] * (k - len(best))


def _cache_hits(doc: dict[str, Any], prompt_tokens: int) -> int:
    usage = doc.get("usage")
    if usage is None or _dict(usage).get("prompt_tokens") != prompt_tokens:
        return 0
    details = usage.get("prompt_tokens_details")
    cached = None if details is None else _dict(details).get("cached_tokens")
    return cached if type(cached) is int and 0 <= cached <= prompt_tokens else 0


def _ids(value: Any) -> list[int]:
    ids = [_int(item) for item in _flat(value)]
    _refuse_unless(all(0 <= item <= INT32_MAX for item in ids))
    return ids


def _flat(value: Any) -> list[Any]:
    """The list itself; one that hides a list behind a plain first element passes as its leaves.

    That is a known limit of the decoder (see its `_flat`): the leaves are as many as the elements.
    """
    items = _list(value)
    leaves = list(_leaves(items))
    nested = any(isinstance(item, list) for item in items)
    _refuse_unless(not nested or (len(leaves) == len(items) and None not in leaves))
    _refuse_unless(not items or not isinstance(items[0], list))
    return leaves


def _leaves(items: list[Any]) -> Any:
    for item in items:
        if isinstance(item, list):
            yield from _leaves(item)
        else:
            yield item


def _float(value: Any, missing: str) -> float:
    if value is None:
        _refuse_unless(missing == "nan")
        return math.nan
    _refuse_unless(type(value) in (int, float) and abs(value) <= FLOAT32_MAX)
    return float(value)


def _id_in_text(text: str) -> int:
    _refuse_unless(text != "" and set(text) <= set("0123456789"))
    _refuse_unless(int(text) <= INT32_MAX)
    return int(text)


def _int(value: Any) -> int:
    _refuse_unless(type(value) is int)
    return int(value)


def _dict(value: Any) -> dict[str, Any]:
    _refuse_unless(type(value) is dict)
    return dict(value)


def _list(value: Any) -> list[Any]:
    _refuse_unless(type(value) is list)
    return list(value)


def _refuse_unless(fine: bool) -> None:
    if not fine:
        raise Refused


def _float32s(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)
