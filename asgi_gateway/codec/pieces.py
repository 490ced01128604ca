"""A body -> SampleArrays in bounded pieces of work, from a skeleton and slices of what was cut out.

Gives what `whole` gives. Where it does not understand a body, or misses a field, it raises
something, and the caller asks `whole`, which then also says what is wrong with it.
"""

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import simdjson

from asgi_gateway.codec import Float32s, Int32s, SampleArrays, Sequence, Topk, Want, rows, table
from asgi_gateway.codec.cut import MARK, Cut, cut
from asgi_gateway.codec.named import named_ids_in
from asgi_gateway.codec.values import (
    MAX_INT32,
    MissingPolicy,
    cache_hits,
    floats,
    ids,
    in_order,
    named_ids,
    required,
    same_length,
    stop_reason,
)

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]

# A slice's copy and what a parser makes of it stay in the second or third cache level. Numbers gain
# nothing above 64 KiB; rows of cells have vectors of their own and pay calls of numpy per slice.
_NUMBER_SLICE: Final = 64 << 10
_ROW_SLICE: Final = 256 << 10
# Slices of numbers between two pauses: some 3 ms.
_SLICES_A_STEP: Final = 16

_NULL: Final = b"null,"


def steps(
    body: bytes,
    want: Want,
    prompt_tokens: int,
    missing: MissingPolicy,
    slicer: simdjson.Parser,
) -> Steps[SampleArrays]:
    """Yields between pieces of work; nothing of a parsed document is kept over a yield but the
    skeleton's.

    Raises:
        Cut, Odd, the parser's errors: the body is not understood here.
        Unreadable, MissingLogprobs, Aborted: as `Decoder.decode`.
    """
    skeleton, spans = cut(body)
    yield
    doc: Any = simdjson.Parser().parse(skeleton)
    run = _Run(body, spans, want, missing, slicer)
    choices = in_order(doc["choices"], want.sequences)
    sequences: list[Sequence] = []
    for choice in choices:
        sequences += ((yield from run.sequence(choice)),)
    _all_counted(doc, sequences)
    prompt_logprobs, prompt_topk = None, None
    if want.prompt_logprobs:
        prompt_logprobs, prompt_topk = yield from run.prompt(choices[0], prompt_tokens)
    return SampleArrays(
        sequences=tuple(sequences),
        prompt_logprobs=prompt_logprobs,
        prompt_topk=prompt_topk,
        prompt_cache_hit_tokens=cache_hits(doc, prompt_tokens),
    )


class _Run:
    """One body while it is decoded; its parser sees one slice at a time."""

    def __init__(
        self,
        body: bytes,
        spans: list[tuple[int, int]],
        want: Want,
        missing: MissingPolicy,
        slicer: simdjson.Parser,
    ) -> None:
        self._body = body
        self._spans = spans
        self._want = want
        self._missing = missing
        self._parser = slicer

    def sequence(self, choice: Any) -> Steps[Sequence]:
        reason = stop_reason(choice)
        answer = choice.get("logprobs")
        if self._want.named_tokens:
            tokens = yield from self._named(required(required(choice, "logprobs"), "tokens"))
        else:
            tokens = yield from self._ids(required(choice, "token_ids"))
        values = answer.get("token_logprobs") if answer is not None else None
        if values is None:
            raise Cut
        logprobs = yield from self._floats(values, tokens.size)
        same_length(tokens, logprobs)
        topk = None
        if self._want.sampled_topk:
            alternatives = answer.get("top_logprobs") if answer is not None else None
            topk = yield from self._sampled_topk(alternatives, tokens.size)
        return Sequence(reason, tokens, logprobs, topk)

    def prompt(self, choice: Any, prompt_tokens: int) -> Steps[tuple[Float32s, Topk | None]]:
        scores = table.PromptScores(prompt_tokens, self._want, self._missing)
        scored = choice.get("prompt_logprobs")
        if scored is None:
            raise Cut
        own = yield from self._ids(required(choice, "prompt_token_ids"))
        span = self._span(scored)
        if span is None:
            table.same_prompt_length(len(scored), own.size, prompt_tokens)
            with table.exact():
                scores.fill(0, scored, own)
            return scores.logprobs, scores.topk
        table.same_prompt_length(prompt_tokens, own.size, prompt_tokens)
        position = 0
        for piece in _row_slices(self._body, span, b'}},{"', _DIGITS):
            if position == 0 and piece.startswith(_NULL):
                # The first position, which is not scored.
                position, piece = 1, piece[len(_NULL) :]
            try:
                cells = rows.prompt(piece, self._parser)
                count = cells.rows
                _fits(position + count, prompt_tokens)
                with table.exact():
                    scores.fill_cells(position, cells, own)
            except rows.Odd:
                parsed: Any = self._parser.parse(b"[%b]" % piece)
                count = len(parsed)
                _fits(position + count, prompt_tokens)
                with table.exact():
                    scores.fill(position, parsed, own)
                del parsed
            position += count
            yield
        table.same_prompt_length(position, own.size, prompt_tokens)
        return scores.logprobs, scores.topk

    def _sampled_topk(self, alternatives: Any, length: int) -> Steps[Topk]:
        topk = table.empty(length, self._want.sampled_topk)
        if alternatives is None:
            raise Cut
        span = self._span(alternatives)
        if span is None:
            _fits(len(alternatives), length)
            _fits(length, len(alternatives))
            with table.exact():
                table.fill_sampled(topk, 0, alternatives, self._missing)
            return topk
        position = 0
        for piece in _row_slices(self._body, span, b'},{"token_id:', None):
            try:
                cells = rows.sampled(piece, self._parser)
                count = cells.rows
                _fits(position + count, length)
                with table.exact():
                    table.fill_sampled_cells(topk, position, cells)
            except rows.Odd:
                parsed: Any = self._parser.parse(b"[%b]" % piece)
                count = len(parsed)
                _fits(position + count, length)
                with table.exact():
                    table.fill_sampled(topk, position, parsed, self._missing)
                del parsed
            position += count
            yield
        _fits(length, position)
        return topk

    def _list(self, piece: bytes) -> Any:
        return self._parser.parse(piece)

    def _span(self, value: Any) -> tuple[int, int] | None:
        """Where the contents of a cut array are; None for a value of the skeleton itself."""
        if type(value) is not str:
            return None
        if not value.startswith(MARK):
            raise Cut
        return self._spans[int(value[len(MARK) :])]

    def _ids(self, value: Any) -> Steps[Int32s]:
        span = self._span(value)
        if span is None:
            return ids(value)
        parts: list[Int32s] = []
        for piece in _number_slices(self._body, span):
            wide = np.frombuffer(self._list(piece).as_buffer(of_type="i"), np.int64)
            # A negative or a larger number has a bit above the 31st.
            if int(np.bitwise_or.reduce(wide)) & ~MAX_INT32:
                raise Cut
            parts.append(wide.astype(np.int32))
            if len(parts) % _SLICES_A_STEP == 0:
                yield
        return _joined(parts)

    def _floats(self, value: Any, length: int) -> Steps[Float32s]:
        span = self._span(value)
        if span is None:
            return floats(value, self._missing)
        found = np.empty(length, np.float32)
        slices, position, full = _number_slices(self._body, span), 0, True
        while full:
            full = False
            # Over a pause an error state would last; one a slice costs more than its rounding.
            with table.exact():
                for number, piece in enumerate(islice(slices, _SLICES_A_STEP), 1):
                    wide = np.frombuffer(self._list(piece).as_buffer(of_type="d"), np.float64)
                    # A ValueError where there are more than tokens.
                    found[position : position + wide.size] = wide
                    position += wide.size
                    full = number == _SLICES_A_STEP
            if full:
                yield
        _fits(length, position)
        return found

    def _named(self, value: Any) -> Steps[Int32s]:
        span = self._span(value)
        if span is None:
            return named_ids(value)
        parts: list[Int32s] = []
        for piece in _number_slices(self._body, span):
            parts.append(named_ids_in(piece, self._parser))
            if len(parts) % _SLICES_A_STEP == 0:
                yield
        return _joined(parts)


def _all_counted(doc: Any, sequences: list[Sequence]) -> None:
    """The upstream's own count; a choice that a cut ran over would be missing here."""
    if doc["usage"]["completion_tokens"] != sum([one.tokens.size for one in sequences]):
        raise Cut


def _joined(parts: list[Int32s]) -> Int32s:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _fits(count: int, room: int) -> None:
    if count > room:
        raise Cut


def _number_slices(body: bytes, span: tuple[int, int]) -> Iterator[bytes]:
    """A list's contents as lists of bounded length, cut at commas."""
    start, end = span
    view = memoryview(body)
    while True:
        comma = body.find(b",", start + _NUMBER_SLICE, end)
        if comma < 0:
            break
        yield b"".join((b"[", view[start:comma], b"]"))
        start = comma + 1
    if start == end:
        # Nothing behind a comma, which is no JSON; a list without anything is not cut out.
        raise Cut
    yield b"".join((b"[", view[start:end], b"]"))


_DIGITS: Final = frozenset(b"0123456789")


def _row_slices(
    body: bytes, span: tuple[int, int], boundary: bytes, then: frozenset[int] | None
) -> Iterator[bytes]:
    """Whole rows of bounded length together, without the comma between slices.

    `boundary` ends with a quote, or with one and a letter, and `then` says what must follow it.
    The quote is not escaped and no string ends with it, for the reason given in `cut`; so the brace
    in front of it is one and no text.
    """
    start, end = span
    comma = boundary.index(b",")
    while end - start > _ROW_SLICE:
        at, limit = start, start + _ROW_SLICE
        while True:
            at = body.rfind(boundary, start, limit)
            if at < 0 or then is None or body[at + len(boundary)] in then:
                break
            limit = at + len(boundary) - 1
        if at < 0:
            at = body.find(boundary, start + _ROW_SLICE - len(boundary), end)
            if at < 0 or (then is not None and body[at + len(boundary)] not in then):
                break
        yield body[start : at + comma]
        start = at + comma + 1
    yield body[start:end]
