"""Top-k tables and prompt scores, filled row by row or from a slice's cells at once."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from asgi_gateway.codec import (
    PAD_LOGPROB,
    PAD_TOKEN,
    Float32s,
    Int32s,
    Topk,
    Want,
)
from asgi_gateway.codec.rows import Cells, Odd, Places
from asgi_gateway.codec.values import (
    TOKEN_ID_PREFIX,
    MissingPolicy,
    absent,
    integer,
    logprob,
    token_id,
)
from asgi_gateway.errors import Unreadable


def exact() -> np.errstate:
    """Around a filling: a float64 that float32 cannot hold is an error, not an infinity."""
    return np.errstate(over="raise")


def empty(length: int, k: int) -> Topk:
    """A table of padding alone."""
    return Topk(
        np.full((length, k), PAD_TOKEN, np.int32), np.full((length, k), PAD_LOGPROB, np.float32)
    )


def fill_sampled(topk: Topk, first: int, rows: Iterable[Any], missing: MissingPolicy) -> None:
    """Rows of `{"token_id:N": logprob}` from position `first` on, best first.

    The sampled token may be an extra entry beyond the k best.
    """
    k = topk.tokens.shape[1]
    for position, row in enumerate(rows, first):
        if row is None:
            absent(missing, f"top_logprobs is null at position {position}")
            continue
        cells = [
            (token_id(key, TOKEN_ID_PREFIX), value)
            for key, raw in row.as_dict().items()
            if (value := _cell(raw, missing)) is not None
        ]
        _fill_row(topk, position, cells, k, rank=lambda cell: -cell[1])


def fill_sampled_cells(topk: Topk, first: int, cells: Cells) -> None:
    """The same of a slice's cells.

    Raises:
        Odd: a row has a token twice.
    """
    _once(cells)
    # Stable: of equal logprobs the upstream's order decides.
    _fill(topk, first, cells, np.lexsort((-cells.logprob, cells.row)))


def same_prompt_length(rows: int, own: int, prompt_tokens: int) -> None:
    if rows != prompt_tokens or own != prompt_tokens:
        raise Unreadable(
            f"prompt_logprobs has {rows} and prompt_token_ids {own} entries"
            f" for a prompt of {prompt_tokens}"
        )


class PromptScores:
    """What is known of a prompt: `logprobs` float32 (length,), NaN at first, and `topk` rows.

    vLLM gives null for the first position and then an object per position, keyed by token id; the
    prompt's own token is always among the entries and may be beyond the k best.
    """

    def __init__(self, prompt_tokens: int, want: Want, missing: MissingPolicy) -> None:
        self.logprobs: Float32s = np.full(prompt_tokens, np.nan, np.float32)
        self.topk = empty(prompt_tokens, want.prompt_topk) if want.prompt_topk else None
        self._k = want.prompt_topk
        self._missing = missing
        # The first position has no logprob; earlier ones than the last N were not asked for.
        self.scored_from = max(1, prompt_tokens - want.prompt_last) if want.prompt_last else 1

    def fill(self, first: int, rows: Iterable[Any], own: Int32s) -> None:
        """Parsed rows from position `first` on; `own` are the prompt's tokens."""
        for position, row in enumerate(rows, first):
            if position < self.scored_from:
                continue
            if row is None:
                absent(self._missing, f"prompt_logprobs is null at position {position}")
                continue
            entries = row.as_dict() if self._k else row
            own_entry = entries.get(str(own[position]))
            value = None if own_entry is None else logprob(own_entry["logprob"])
            if value is None:
                absent(self._missing, f"no logprob of the prompt's token at position {position}")
            else:
                self.logprobs[position] = value
            if self.topk is not None:
                cells = _ranked(entries, self._k, self._missing)
                _fill_row(self.topk, position, cells, self._k, rank=_by_rank)

    def fill_cells(self, first: int, cells: Cells, own: Int32s) -> None:
        """The same of a slice's cells.

        Raises:
            Odd: a row has a token twice, or not the prompt's own.
        """
        _once(cells)
        mine = np.flatnonzero(cells.token == own[cells.row + first])
        if mine.size != cells.rows:
            raise Odd
        skipped = max(0, self.scored_from - first)
        self.logprobs[first + skipped : first + cells.rows] = cells.logprob[mine][skipped:]
        if self.topk is None:
            return
        rank = cells.rank
        if rank is None:
            raise Odd
        kept = np.flatnonzero((rank <= self._k) & (cells.row >= skipped))
        best = Cells(
            cells.rows, cells.row[kept], cells.token[kept], cells.logprob[kept], rank[kept]
        )
        # Ranks tie where logprobs do: the better logprob, then the upstream's order, decides.
        _fill(self.topk, first, best, np.lexsort((-best.logprob, rank[kept], best.row)))


def _once(cells: Cells) -> None:
    """A key that comes twice in an object is one entry, which takes a walk to see."""
    keys = np.sort(cells.row << 31 | cells.token)
    if (keys[1:] == keys[:-1]).any():
        raise Odd


def _fill(topk: Topk, first: int, cells: Cells, order: Places) -> None:
    """Write cells in this order, the row being its first key, as far as a row has columns."""
    row = cells.row[order]
    column = np.arange(row.size) - np.searchsorted(row, row)
    fits = np.flatnonzero(column < topk.tokens.shape[1])
    row, column, order = row[fits] + first, column[fits], order[fits]
    topk.tokens[row, column] = cells.token[order]
    topk.logprobs[row, column] = cells.logprob[order]


def _cell(value: Any, missing: MissingPolicy) -> float | None:
    """The logprob of a top-k cell; None for one that is left out, and so padded."""
    found = logprob(value)
    if found is None:
        absent(missing, "a top-k logprob is null")
    return found


def _ranked(
    entries: dict[str, dict[str, Any]], k: int, missing: MissingPolicy
) -> list[tuple[int, float, int]]:
    """(token, logprob, rank) of the entries that are among the k best."""
    cells = [
        (token_id(key), value, integer(entry["rank"]))
        for key, entry in entries.items()
        if (value := _cell(entry["logprob"], missing)) is not None
    ]
    return [cell for cell in cells if cell[2] <= k]


def _by_rank(cell: tuple[int, float, int]) -> tuple[int, float]:
    # Ranks tie where logprobs do: the better logprob, then the upstream's order, decides.
    return cell[2], -cell[1]


def _fill_row(
    topk: Topk, position: int, cells: list[Any], k: int, *, rank: Callable[[Any], Any]
) -> None:
    tokens, logprobs = topk.tokens[position], topk.logprobs[position]
    for column, cell in enumerate(sorted(cells, key=rank)[:k]):
        tokens[column] = cell[0]
        logprobs[column] = cell[1]
