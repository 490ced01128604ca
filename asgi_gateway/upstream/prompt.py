"""The prompt of a request: token ids, copied as digits from one JSON into the other."""

import re
from typing import Final

from asgi_gateway.errors import Malformed, Unsupported
from asgi_gateway.protocol import Chunk, given

MAX_TOKEN_ID: Final = 2**31 - 1
# vLLM's own limit of prompts per request.
MAX_PROMPTS: Final = 1024
# What the repetition of one prompt may make of it; vllm-router takes 512 MiB.
MAX_REPEATED_BYTES: Final = 64 << 20

_BLANKS: Final = b" \t\r\n"
_DIGITS_TO_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_TEN_DIGITS: Final = b"0000000000"
_LONG_NUMBER: Final = re.compile(rb"[0-9]{10,}")


def prompt_ids(chunks: list[Chunk]) -> tuple[bytes, int]:
    """The chunks' token ids as one JSON array without blanks, and how many there are.

    Raises:
        Malformed: an id that is not an integer of 0 to 2^31 - 1, or no id at all.
        Unsupported: an image or audio chunk.
    """
    pieces: list[bytes] = []
    count = 0
    for position, chunk in enumerate(chunks):
        kind = chunk.kind()
        if kind != "encoded_text":
            raise Unsupported(
                f"prompt.chunks[{position}] is of type {kind!r:.40}; only encoded_text is served"
            )
        if not given(chunk.tokens):
            raise Malformed(f"prompt.chunks[{position}].tokens is missing")
        digits = _digits(bytes(chunk.tokens), position)
        if digits:
            pieces.append(digits)
            count += digits.count(b",") + 1
    if not count:
        raise Malformed("prompt has no tokens; at least one is needed")
    return b"[" + b",".join(pieces) + b"]", count


def _digits(raw: bytes, position: int) -> bytes:
    """What is inside the brackets of a flat JSON array of token ids, without blanks.

    The JSON decoder has checked syntax, so nothing but digits, commas and one pair of brackets
    means a flat array of integers without sign, fraction or exponent. It would pass null, true,
    1.5 and nested lists, and vLLM would read some of them as other prompts.
    """
    zeros = raw.translate(_DIGITS_TO_ZERO, _BLANKS)
    if zeros.translate(None, b"0,") != b"[]":
        raise Malformed(
            f"prompt.chunks[{position}].tokens must be a flat list of integers,"
            f" each 0 to {MAX_TOKEN_ID}"
        )
    digits = raw[1:-1] if len(zeros) == len(raw) else raw.translate(None, _BLANKS + b"[]")
    if _TEN_DIGITS in zeros:
        for number in _LONG_NUMBER.findall(digits):
            # Compared as text first: a number of a million digits must cost nothing.
            if len(number) > 10 or int(number) > MAX_TOKEN_ID:
                raise Malformed(
                    f"prompt.chunks[{position}].tokens has the id {number[:20].decode()},"
                    f" the largest is {MAX_TOKEN_ID}"
                )
    return digits


def repeated(tokens: bytes, times: int) -> bytes:
    """A list of `times` equal prompts, bounded: a small request must not become gigabytes."""
    if times > MAX_PROMPTS or len(tokens) * times > MAX_REPEATED_BYTES:
        raise Malformed(
            f"num_samples is {times}: at temperature 0 the prompt is sent that often, at most"
            f" {MAX_PROMPTS} times and {MAX_REPEATED_BYTES} bytes, here {len(tokens)} bytes each"
        )
    return b"[" + b",".join([tokens] * times) + b"]"
