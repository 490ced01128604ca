"""The large arrays of a completion body, found without parsing it.

`cut` takes the contents of the text and of the large arrays out of a body and leaves a mark in the
place of each. What is left, the skeleton, is small and is parsed in full; the marks show which
array was where, so every question of nesting, of key order and of duplicate keys is answered by the
parser and not by the search.

Why a byte search is sound. In JSON every quote inside a string is escaped, so the quote of `,"` or
`{"` is not inside one: it opens a string, or closes one that ends with that comma or brace. It
cannot close one where a letter follows, since after a string only a blank, a comma, a colon or a
closing bracket may come. So `,"tokens":[` in a document is a key and the bracket is an array's.

Why a cut array is the whole array. A cut begins behind such a bracket. It ends at the first `]`
that is followed by what may follow an array that is an object's value (`_AFTER`); the array's own
end is such a `]`, so a cut never runs beyond it, and the depth of brackets never falls below its
beginning inside of a cut. A `]` in a string seldom looks so, and where it does the quotes before it
are counted. A cut that ended too soon, in a nested array, would leave brackets open in the
skeleton; no other cut can make up for that, so the skeleton would not parse, and the caller parses
the whole body instead.

What is not searched. The text and the two arrays that nobody needs are two thirds of a body, and
`layout` steps over them by the order and sizes that vLLM writes. Its ends are ends in the document,
but of this value only where the layout is vLLM's: a text behind which other keys come before the
logprobs is cut together with these keys. Nothing is read wrong by that, as long as an object has no
key twice: what was cut away is missing, and everything that is missing, a choice or a token of the
upstream's own count too, sends the caller to the whole body. The other way round a body with a key
twice in one choice, or more choices than were asked for and than its usage counts, might be read
otherwise than the parser does. No server writes either.

Not noticed is what a parser would find in the contents that are skipped: a byte that is no UTF-8 in
the text, say. The arrays that are used are parsed, and the skeleton is.
"""

import re
from typing import Final

import numpy as np

from asgi_gateway.codec.layout import Layout

MARK: Final = "cut out:"
_MARKED: Final = b'"cut out:%d"'
_MARK_BYTES: Final = MARK.encode()

_QUOTE, _BACKSLASH, _BRACKET = 0x22, 0x5C, 0x5D
# A byte is looked for one by one, by memchr. Where it turns out, after so many, to come more often
# than once in so many bytes, it is looked for with vectors, in pieces that fit the second cache.
_PROBE: Final = 16
_DENSE_QUOTE_BYTES: Final = 2048
_DENSE_BRACKET_BYTES: Final = 512
_WINDOW: Final = 1 << 16

# Shorter contents are left in the skeleton; a cut has a price of its own.
_WORTH_BYTES: Final = 256

_KEY: Final = re.compile(
    rb'[{,]"(?:(text)":"'
    rb"|(token_logprobs|token_ids|text_offset|prompt_token_ids|tokens|top_logprobs|prompt_logprobs)"
    rb'":\[)'
)
_NUMBERS: Final = frozenset({"token_logprobs", "token_ids", "text_offset", "prompt_token_ids"})

_BLANK: Final = rb"[ \t\r\n]*"
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
# What may follow the `]` of an array that is the value of a key.
_AFTER: Final = re.compile(
    rb"""\]{_}(?:
        ,{_}{s}{_}:                             # the next key
        |\}}{_}(?:                              # the end of the object, and behind that
            ,{_}(?:{s}{_}[:,\]]|\[|\{{{_}["}}]|-?[0-9]|true|false|null)
            |[\]}}]{_}(?:[\]}},]|\Z)
            |\Z
        )
    )""".replace(b"{_}", _BLANK)
    .replace(b"{s}", _STRING)
    .replace(b"{{", b"{")
    .replace(b"}}", b"}"),
    re.VERBOSE | re.DOTALL,
)
_SURE: Final = re.compile(rb'\]\}?,"[A-Za-z_]')
_MAY_FOLLOW: Final = frozenset(b",} \t\r\n")
_MAY_FOLLOW_MASK: Final = np.isin(np.arange(256), list(_MAY_FOLLOW))


class Cut(Exception):
    """The layout is not one that this module cuts."""


def cut(body: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """The skeleton of a body, and where the contents of its marks are: (start, end) by number.

    Raises:
        Cut: an array or the text does not end, or the body has our mark by itself.
    """
    pieces: list[bytes] = []
    spans: list[tuple[int, int]] = []
    layout = Layout(body)
    kept_from = position = 0
    while (key := _KEY.search(body, position)) is not None:
        start, name = key.end(), key[key.lastindex or 1].decode()
        end = _end(body, start, name, layout)
        layout.found(name, start, end)
        position = end + 1
        if end - start < _WORTH_BYTES:
            continue
        # The brackets or quotes go with the contents.
        pieces.append(body[kept_from : start - 1])
        pieces.append(_MARKED % len(spans))
        spans.append((start, end))
        kept_from = position
    pieces.append(body[kept_from:])
    skeleton = b"".join(pieces)
    if skeleton.count(_MARK_BYTES) != len(spans):
        raise Cut
    return skeleton, spans


def _end(body: bytes, start: int, name: str, layout: Layout) -> int:
    if name in _NUMBERS:
        return _end_of_numbers(body, start)
    if name == "text":
        end = layout.text_end(start)
        return end if end >= 0 else _end_of_string(body, start)
    end = -1
    if name == "tokens":
        end = layout.tokens_end(start)
    elif name == "top_logprobs":
        end = layout.rows_end(start)
    return end if end >= 0 else _end_of_array(body, start)


def _end_of_numbers(body: bytes, start: int) -> int:
    """The first `]`, where it is not in a string."""
    end = body.index(b"]", start)
    if _SURE.match(body, end) is None and body.find(b'"', start, end) >= 0:
        raise Cut
    return end


def _end_of_string(body: bytes, start: int) -> int:
    """The first quote that no backslash escapes."""
    index, position, dense_before = body.index, start - 1, start
    while True:
        dense_before += _PROBE * _DENSE_QUOTE_BYTES
        for _ in range(_PROBE):
            position = index(b'"', position + 1)
            if body[position - 1] != _BACKSLASH:
                return position
            # Behind one backslash alone it is escaped, and that is what nearly all are.
            if body[position - 2] == _BACKSLASH and _unescaped(body, position):
                return position
        if position < dense_before:
            return _end_of_dense_string(body, position + 1)


def _unescaped(body: bytes, quote: int) -> bool:
    run = quote
    while body[run - 1] == _BACKSLASH:
        run -= 1
    return (quote - run) % 2 == 0


def _end_of_dense_string(body: bytes, start: int) -> int:
    flat = np.frombuffer(body, np.uint8)
    for window in range(start, len(body), _WINDOW):
        stop = min(window + _WINDOW, len(body))
        backslash = flat[window - 2 : stop - 1] == _BACKSLASH
        # Quotes behind one backslash alone are escaped.
        doubtful = flat[window:stop] == _QUOTE
        np.greater(doubtful, backslash[1:] > backslash[:-1], out=doubtful)
        first = int(doubtful.argmax())
        if not doubtful[first]:
            continue
        if _unescaped(body, window + first):
            return window + first
        for quote in np.flatnonzero(doubtful).tolist():
            if _unescaped(body, window + quote):
                return int(window + quote)
    raise Cut


def _end_of_array(body: bytes, start: int) -> int:
    """The first `]` that is the end of an object's value, as far as can be seen from here."""
    index, position, dense_before = body.index, start - 1, start
    strings = _Strings(body, start)
    while True:
        dense_before += _PROBE * _DENSE_BRACKET_BYTES
        for _ in range(_PROBE):
            # A document does not end with an array: one that does is an IndexError here.
            position = index(b"]", position + 1)
            if body[position + 1] in _MAY_FOLLOW and _is_end(body, position, strings):
                return position
        if position < dense_before:
            return _end_of_dense_array(body, position + 1, strings)


def _end_of_dense_array(body: bytes, start: int, strings: "_Strings") -> int:
    flat, last = np.frombuffer(body, np.uint8), len(body) - 1
    for window in range(start, last, _WINDOW):
        brackets = np.flatnonzero(flat[window : min(window + _WINDOW, last)] == _BRACKET) + window
        for bracket in brackets[_MAY_FOLLOW_MASK[flat[brackets + 1]]].tolist():
            if _is_end(body, bracket, strings):
                return int(bracket)
    raise Cut


def _is_end(body: bytes, bracket: int, strings: "_Strings") -> bool:
    if _AFTER.match(body, bracket) is None:
        return False
    # Where a letter follows its quote a key begins. Else it may be the token `],` before `:`.
    return _SURE.match(body, bracket) is not None or not strings.hold(bracket)


class _Strings:
    """Whether places of an array, asked for in their order, are inside of a string."""

    def __init__(self, body: bytes, start: int) -> None:
        self._body = body
        self._counted = start
        self._inside = False

    def hold(self, position: int) -> bool:
        while self._counted < position:
            stop = min(self._counted + _WINDOW, position)
            # Backslashes are read in pairs, so a run of them is not parted.
            while stop < position and self._body[stop - 1] == _BACKSLASH:
                stop += 1
            piece = self._body[self._counted : stop]
            if b"\\" in piece:
                piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
            self._inside ^= piece.count(b'"') % 2 == 1
            self._counted = stop
        return self._inside
