"""The prompt of a request: token ids, copied as digits from one JSON into the other."""

import re
from typing import Final

from msgspec import UNSET

from asgi_gateway.errors import Malformed, Unsupported
from asgi_gateway.protocol import Chunk

MAX_TOKEN_ID: Final = 2**31 - 1
# vLLM's own limit of prompts per request.
MAX_PROMPTS: Final = 1024
# What the repetition of one prompt may make of it; vllm-router takes 512 MiB.
MAX_REPEATED_BYTES: Final = 64 << 20

_BLANKS: Final = b" \t\r\n"
_DIGITS: Final = b"0123456789"
_BRACKET: Final = ord("[")
# What stands before a number is made one sign, behind which a run of digits is looked for.
_BEFORE_AND_ZEROS: Final = bytes.maketrans(b"[" + _DIGITS, b"," + b"0" * 10)
_TEN_DIGITS: Final = b"," + b"0" * 10
_LONG_NUMBER: Final = re.compile(rb"[0-9]{10,}")


def prompt_ids(chunks: list[Chunk]) -> tuple[bytes, int]:
    """The chunks' token ids as one JSON array without blanks, and how many there are.

    Raises:
        Malformed: an id that is not an integer of 0 to 2^31 - 1, or no id at all.
        Unsupported: an image or audio chunk.
    """
    if len(chunks) == 1:
        ids, count = _ids(chunks[0], 0)
    else:
        ids, count = _joined(chunks)
    if not count:
        raise Malformed("prompt has no tokens; at least one is needed")
    return ids, count


def _joined(chunks: list[Chunk]) -> tuple[bytes, int]:
    lists = [_ids(chunk, position) for position, chunk in enumerate(chunks)]
    contents = [ids[1:-1] for ids, count in lists if count]
    return b"[" + b",".join(contents) + b"]", sum([count for _, count in lists])


def _ids(chunk: Chunk, position: int) -> tuple[bytes, int]:
    """A chunk's token ids as a JSON array without blanks, and how many there are.

    The JSON decoder has checked syntax, so nothing but commas and one pair of brackets around the
    digits means a flat array of integers without sign, fraction or exponent. It would pass null,
    true, 1.5 and nested lists, and vLLM would read some of them as other prompts.
    """
    kind = chunk.type or chunk.kind()
    if kind != "encoded_text":
        raise Unsupported(
            f"prompt.chunks[{position}] is of type {kind!r:.40}; only encoded_text is served"
        )
    if chunk.tokens is UNSET:
        raise Malformed(f"prompt.chunks[{position}].tokens is missing")
    raw = bytes(chunk.tokens)
    frame = raw.translate(None, _DIGITS)
    commas = frame.count(b",")
    # Two more bytes, the first of which is a bracket: the other is its end.
    if commas != len(frame) - 2 or frame[0] != _BRACKET:
        # With blanks, or no such array.
        raw = raw.translate(None, _BLANKS)
        frame = frame.translate(None, _BLANKS)
        commas = len(frame) - 2
        if frame != b"[" + b"," * commas + b"]":
            raise _no_ids(raw, position)
    # From the end: `find` would look at every byte of a run of zeros.
    if raw.translate(_BEFORE_AND_ZEROS).rfind(_TEN_DIGITS) >= 0:
        for number in _LONG_NUMBER.findall(raw):
            # Compared as text first: a number of a million digits must cost nothing.
            if len(number) > 10 or int(number) > MAX_TOKEN_ID:
                raise Malformed(
                    f"prompt.chunks[{position}].tokens has the id {number[:20].decode()},"
                    f" the largest is {MAX_TOKEN_ID}"
                )
    return raw, commas + 1 if len(raw) > len(frame) else 0


def _no_ids(raw: bytes, position: int) -> Malformed:
    field = f"prompt.chunks[{position}].tokens"
    if raw == b"null":
        return Malformed(f"{field} is missing")
    return Malformed(f"{field} must be a flat list of integers, each 0 to {MAX_TOKEN_ID}")


def repeated(tokens: bytes, times: int) -> bytes:
    """A list of `times` equal prompts, bounded: a small request must not become gigabytes."""
    if times > MAX_PROMPTS or len(tokens) * times > MAX_REPEATED_BYTES:
        raise Malformed(
            f"num_samples is {times}: at temperature 0 the prompt is sent that often, at most"
            f" {MAX_PROMPTS} times and {MAX_REPEATED_BYTES} bytes, here {len(tokens)} bytes each"
        )
    return b"[" + b",".join([tokens] * times) + b"]"
