"""The tape: one fixed run of generated positions, rendered once, from which answers are cut.

Rendering JSON for every token of every answer would make this server the limit of any
measurement. So one pseudo-random tape is drawn per vocabulary, each of its positions is rendered
once, and an answer is a handful of slices. Slices start at arbitrary positions chosen by a hash of
the request, and the first ones are short, so that even 8 tokens tell two requests apart.

Nothing here knows a request: see `answers` for what is right and `body` for how it is written.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import accumulate, chain, repeat
from struct import unpack
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

START_COUNT: Final = 1 << 16
"""Positions at which a slice may begin; 16 bits of the key choose one."""

CHUNK_CAP: Final = 4096
CHUNKS: Final = (4, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, *repeat(CHUNK_CAP, 21))
"""Slice lengths in tokens, one for each of the 32 draws in a 64-byte key."""

LOGPROB_COUNT: Final = 4096
CONFIDENT_COUNT: Final = 256
"""Entries nearest 0, some of which Python writes with an exponent, as a sure model's are."""

TOP_LOGPROBS_CAP: Final = 20
"""vLLM's default --max-logprobs."""

FAULT_RANGE: Final = 1000
"""Ids at the top of the vocabulary that are never generated: fault ids and EOS live there."""

VOCAB_MIN: Final = 2 * FAULT_RANGE

_encode = msgspec.json.encode


def eos_id(vocab: int) -> int:
    """The end-of-text id; 151933 in the recorded model's vocabulary of 151,936."""
    return vocab - 3


def text_of(token_id: int) -> str:
    """Text of an ordinary id. Distinct but for ids 128 to 255, which decode to U+FFFD.

    One id in sixteen carries what a byte scanner trips over: quotes, brackets, backslashes,
    control characters, and characters of two to four bytes.
    """
    if 128 <= token_id <= 255:
        return "\ufffd"
    match token_id & 63:
        case 7:
            return f'"]{token_id}'
        case 19:
            return f"\\{token_id}\n"
        case 33:
            return f"é中{token_id}"
        case 45:
            return f"\U0001f600{token_id}"
        case _:
            return f" t{token_id}"


def key_of(base: bytes, draw: bytes) -> bytes:
    """The 64 bytes that place an answer's slices on the tape."""
    return blake2b(base + draw).digest()


def slices(key: bytes, count: int) -> list[tuple[int, int]]:
    """Tape ranges that make up the first `count` positions; a longer answer only adds to them."""
    found: list[tuple[int, int]] = []
    while True:
        for size, start in zip(CHUNKS, unpack("<32H", key), strict=True):
            if count <= size:
                found.append((start, start + count))
                return found
            found.append((start, start + size))
            count -= size
        key = blake2b(key).digest()


def positions(key: bytes, count: int) -> Iterator[int]:
    """The same as single tape positions."""
    return chain.from_iterable(range(a, b) for a, b in slices(key, count))


def _noise(count: int, stream: int) -> npt.NDArray[np.uint64]:
    """Splitmix64, written out because numpy may change what its generators draw."""
    z = (np.arange(count, dtype=np.uint64) + np.uint64(stream << 32)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _logprob_table() -> list[float]:
    """Distinct float32 values, descending, so that neighbours can serve as ranked alternatives."""
    confident = -np.logspace(-7, -0.05, CONFIDENT_COUNT)
    usual = np.linspace(-10.0, -13.5, LOGPROB_COUNT - CONFIDENT_COUNT)
    jitter = (_noise(LOGPROB_COUNT - CONFIDENT_COUNT, 9) % np.uint64(997)).astype(np.float64)
    usual -= jitter * (3.5 / LOGPROB_COUNT / 1000)
    values: list[float] = np.concatenate([confident, usual]).astype(np.float32).tolist()
    return values


LOGPROBS: Final = tuple(_logprob_table())
LOGPROBS_JSON: Final = tuple(repr(value).encode() for value in LOGPROBS)
"""As vLLM writes them: Python's repr, which differs from msgspec's below 1e-4."""


class Strip:
    """JSON of consecutive positions, each followed by a comma, and where each begins."""

    __slots__ = ("bounds", "data")

    def __init__(self, pieces: Iterable[bytes]) -> None:
        listed = list(pieces)
        self.data = memoryview(b"".join(listed))
        self.bounds = array("I", accumulate(map(len, listed), initial=0))

    def cut(self, ranges: Iterable[tuple[int, int]]) -> bytes:
        """The elements of these ranges, comma-separated, for between brackets."""
        data, bounds = self.data, self.bounds
        return b"".join([data[bounds[a] : bounds[b]] for a, b in ranges])[:-1]


class Tape:
    """Everything drawn for one vocabulary. Immutable once built; strips are made on first use."""

    def __init__(self, vocab: int) -> None:
        if vocab < VOCAB_MIN:
            raise ValueError(f"vocabulary of {vocab}: at least {VOCAB_MIN} is needed")
        length = START_COUNT + CHUNK_CAP
        ordinary = vocab - FAULT_RANGE
        self.vocab = vocab
        self.eos = eos_id(vocab)
        self.ids: list[int] = (_noise(length, 1) % np.uint64(ordinary)).tolist()
        # The margin leaves room for alternatives on both sides of any drawn value.
        margin = TOP_LOGPROBS_CAP + 2
        drawable = LOGPROB_COUNT - 2 * margin
        self.logprob_indexes: list[int] = (
            _noise(length, 2) % np.uint64(drawable) + np.uint64(margin)
        ).tolist()
        # One in four is the most likely token, the others are far down: 5 or 6 entries for k = 5.
        draw = _noise(length, 3)
        far = draw % np.uint64(vocab // 2) + np.uint64(margin)
        self.ranks: list[int] = np.where(draw >> np.uint64(62) == 0, np.uint64(1), far).tolist()
        self.alternative_starts: list[int] = (_noise(length, 4) % np.uint64(ordinary)).tolist()

    def __repr__(self) -> str:
        return f"<Tape vocab={self.vocab} positions={len(self.ids)}>"

    @cached_property
    def _texts(self) -> list[str]:
        return list(map(text_of, self.ids))

    @cached_property
    def _quoted(self) -> list[bytes]:
        return list(map(_encode, self._texts))

    @cached_property
    def _quoted_ids(self) -> list[bytes]:
        return [b'"token_id:%d"' % token_id for token_id in self.ids]

    def _top(self, names: list[bytes]) -> Strip:
        return Strip(
            b"{%b:%b}," % (name, LOGPROBS_JSON[index])
            for name, index in zip(names, self.logprob_indexes, strict=True)
        )

    @cached_property
    def texts(self) -> Strip:
        """Escaped text without quotes. It has no commas, so `cut` does not apply to it."""
        return Strip(quoted[1:-1] for quoted in self._quoted)

    @cached_property
    def ids_json(self) -> Strip:
        return Strip(b"%d," % token_id for token_id in self.ids)

    @cached_property
    def logprobs_json(self) -> Strip:
        return Strip(LOGPROBS_JSON[index] + b"," for index in self.logprob_indexes)

    @cached_property
    def tokens_json(self) -> Strip:
        return Strip(quoted + b"," for quoted in self._quoted)

    @cached_property
    def tokens_as_ids_json(self) -> Strip:
        return Strip(quoted + b"," for quoted in self._quoted_ids)

    @cached_property
    def top_json(self) -> Strip:
        return self._top(self._quoted)

    @cached_property
    def top_as_ids_json(self) -> Strip:
        return self._top(self._quoted_ids)

    @cached_property
    def text_lengths(self) -> array[int]:
        """Characters before each position, from the tape's beginning."""
        return array("I", accumulate(map(len, self._texts), initial=0))

    @cached_property
    def as_ids_lengths(self) -> array[int]:
        return array("I", accumulate((len(q) - 2 for q in self._quoted_ids), initial=0))

    def render(self) -> None:
        """Make every strip, about 0.1 s in all."""
        for name in (
            "texts",
            "ids_json",
            "logprobs_json",
            "tokens_json",
            "tokens_as_ids_json",
            "top_json",
            "top_as_ids_json",
            "text_lengths",
            "as_ids_lengths",
        ):
            getattr(self, name)
        # Only the strips are read from here on; the pieces would be half a million objects.
        for name in ("_texts", "_quoted", "_quoted_ids"):
            self.__dict__.pop(name, None)

    def text(self, ranges: Iterable[tuple[int, int]]) -> bytes:
        """Escaped JSON text of these ranges, without quotes."""
        data, bounds = self.texts.data, self.texts.bounds
        return b"".join([data[bounds[a] : bounds[b]] for a, b in ranges])

    def offsets(self, ranges: Iterable[tuple[int, int]], *, as_ids: bool = False) -> list[int]:
        """Characters before each position of an answer made of these ranges."""
        lengths = self.as_ids_lengths if as_ids else self.text_lengths
        found: list[int] = []
        before = 0
        for a, b in ranges:
            shift = before - lengths[a]
            if b - a <= 32:
                found += [length + shift for length in lengths[a:b]]
            else:
                found += (np.frombuffer(lengths, np.uint32)[a:b].astype(np.int64) + shift).tolist()
            before = lengths[b] + shift
        return found


@lru_cache(maxsize=4)
def tape(vocab: int) -> Tape:
    """The tape of a vocabulary; a pure value, kept because drawing it takes about 0.1 s."""
    return Tape(vocab)
