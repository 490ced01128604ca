"""Top-k rows as flat tables, read from a slice of JSON text without an object per cell.

Quotes give the places of keys and values, the bytes between them are compared with what vLLM
writes there, and the numbers are copied, padded to one width, into one array that simdjson reads.
So every byte of a slice is accounted for, but those inside of decoded tokens. What is not laid out
exactly so raises `Odd`, and the caller walks the parsed rows instead.
"""

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import simdjson

Bytes: TypeAlias = npt.NDArray[np.uint8]
Places: TypeAlias = npt.NDArray[np.int64]
Doubles: TypeAlias = npt.NDArray[np.float64]

_MAX_INT32: Final = 2**31 - 1
# Ids and ranks of up to ten digits; float64 takes 24 characters at most.
_ID_WIDTH: Final = 11
_FLOAT_WIDTH: Final = 25
# Bytes in front of and behind a slice that lookups around a place may touch.
_EDGE: Final = b" " * 32


class Odd(Exception):
    """A slice that is valid in another way than vLLM writes it, or not valid."""


class Cells(NamedTuple):
    """The cells of some rows, in their order: `row` int64 counts rows from 0 and never falls."""

    rows: int
    row: Places
    token: Places
    logprob: Doubles
    rank: Places | None


def sampled(piece: bytes, parser: simdjson.Parser) -> Cells:
    """The cells of `{"token_id:N":logprob,...},{...}`; no row is empty or null.

    Raises:
        Odd: anything else.
    """
    text = np.frombuffer(_EDGE + piece + _EDGE, np.uint8)
    quotes = _quotes(piece, text)
    if not quotes.size or quotes.size % 2:
        raise Odd
    opened, closed = quotes[0::2], quotes[1::2]
    if not (_literal(text, opened, b'"token_id:') and _literal(text, closed, b'":')):
        raise Odd
    first, last = _rows(text, opened, len(piece), closing=1)
    token = _integers(text, opened + 10, closed, parser)
    logprob = _numbers(text, closed + 2, last, _FLOAT_WIDTH, parser)
    return Cells(int(first.sum()), np.cumsum(first) - 1, token, logprob, None)


def prompt(piece: bytes, parser: simdjson.Parser) -> Cells:
    """The cells of `{"N":{"logprob":x,"rank":n,"decoded_token":string or null},...},{...}`.

    Raises:
        Odd: anything else.
    """
    text = np.frombuffer(_EDGE + piece + _EDGE, np.uint8)
    quotes = _quotes(piece, text)
    # Ten quotes a cell, eight where the token is null; a slice of both kinds is odd.
    decoded = b'"decoded_token":"'
    marks = 10
    if quotes.size >= 8 and not _literal(text, quotes[6:7], decoded):
        decoded, marks = b'"decoded_token":null', 8
    if not quotes.size or quotes.size % marks:
        raise Odd
    at = quotes.reshape(-1, marks).T
    if not (
        _literal(text, at[1], b'":{"logprob":')
        and _literal(text, at[4], b'"rank":')
        and _literal(text, at[6], decoded)
    ):
        raise Odd
    first, last = _rows(text, at[0], len(piece), closing=2)
    # The cell's own brace, behind the string or the null.
    if (last - 1 != (at[9] if marks == 10 else at[6] + 19)).any():
        raise Odd
    if not (_literal(text, at[4] - 1, b",") and _literal(text, at[6] - 1, b",")):
        raise Odd
    token = _integers(text, at[0] + 1, at[1], parser)
    logprob = _numbers(text, at[3] + 2, at[4] - 1, _FLOAT_WIDTH, parser)
    rank = _integers(text, at[5] + 2, at[6] - 1, parser)
    return Cells(int(first.sum()), np.cumsum(first) - 1, token, logprob, rank)


def _rows(
    text: Bytes, opened: Places, size: int, *, closing: int
) -> tuple[npt.NDArray[np.bool_], Places]:
    """Which cells begin a row, and where each cell's content ends, braces not counted.

    `closing` is the number of braces that end a row's last cell; one fewer ends another cell.
    """
    first = text[opened - 1] == ord("{")
    ends = np.empty_like(opened)
    ends[:-1] = opened[1:] - np.where(first[1:], closing + 2, closing)
    ends[-1] = len(_EDGE) + size - closing
    inner = ends[:-1][~first[1:]]
    outer = ends[:-1][first[1:]]
    braces = b"}" * closing
    good = (
        bool(first[0])
        and int(opened[0]) == len(_EDGE) + 1
        and _literal(text, inner, braces[1:] + b',"')
        and _literal(text, outer, braces + b',{"')
        and _literal(text, ends[-1:], braces + _EDGE[:1])
    )
    if not good:
        raise Odd
    return first, ends


def _quotes(piece: bytes, text: Bytes) -> Places:
    """Where the quotes are that no backslash escapes."""
    quotes = np.flatnonzero(text == ord('"'))
    if b"\\" not in piece:
        return quotes
    escaped = text[quotes - 1] == ord("\\")
    for index in np.flatnonzero(escaped & (text[quotes - 2] == ord("\\"))).tolist():
        # `text` begins with blanks, so the run of backslashes does.
        run = before = int(quotes[index]) - 1
        while text[run] == ord("\\"):
            run -= 1
        escaped[index] = (before - run) % 2 == 1
    return np.compress(~escaped, quotes)


def _literal(text: Bytes, places: Places, literal: bytes) -> bool:
    """Whether these bytes stand at every one of the places."""
    found = _window(text, len(literal))[places].view(np.uint8).reshape(-1, len(literal))
    return bool((found == np.frombuffer(literal, np.uint8)).all())


def _window(text: Bytes, width: int) -> npt.NDArray[np.void]:
    """Every run of `width` bytes as one element, without a copy."""
    return np.ndarray((text.size - width + 1,), f"V{width}", text, strides=(1,))


def _integers(text: Bytes, starts: Places, ends: Places, parser: simdjson.Parser) -> Places:
    """Whole numbers of 0 to 2^31 - 1, written with digits alone."""
    # A sign, a point or an exponent would be another kind of number, or another key.
    digit = text[starts] - ord("0")
    if (digit > 9).any() or (ends - starts > _ID_WIDTH - 1).any():
        raise Odd
    numbers = np.frombuffer(
        _parsed(text, starts, ends, _ID_WIDTH, parser).as_buffer(of_type="i"), np.int64
    )
    if numbers.size != starts.size or (numbers > _MAX_INT32).any():
        raise Odd
    return numbers


def _numbers(
    text: Bytes, starts: Places, ends: Places, width: int, parser: simdjson.Parser
) -> Doubles:
    if (ends - starts > width - 1).any():
        raise Odd
    numbers = np.frombuffer(
        _parsed(text, starts, ends, width, parser).as_buffer(of_type="d"), np.float64
    )
    if numbers.size != starts.size:
        raise Odd
    return numbers


def _parsed(text: Bytes, starts: Places, ends: Places, width: int, parser: simdjson.Parser) -> Any:
    """The parsed list of these stretches of the text, each between one byte and width - 1."""
    table = _window(text, width)[starts].view(np.uint8).reshape(-1, width)
    lengths = (ends - starts).astype(np.uint8)
    np.putmask(table, np.arange(width, dtype=np.uint8) >= lengths[:, None], ord(" "))
    # A stretch holds a number and nothing else, or the list has more or fewer elements than places.
    table[:, -1] = ord(",")
    table[-1, -1] = ord("]")
    try:
        return parser.parse(b"[" + table.tobytes())
    except (ValueError, RuntimeError) as error:
        raise Odd from error
