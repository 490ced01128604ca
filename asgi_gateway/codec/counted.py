"""How many tokens a SampleResponse holds, from its lengths alone.

Field numbers: protos/asgi_gateway/sampling.proto.
"""

from typing import Final

_SEQUENCE: Final = 0x0A
_TOKENS: Final = 0x12
_VARINT: Final = 0
_INT32_BYTES: Final = 4


def sampled_tokens(result: bytes) -> int:
    """Of all sequences together, of what `encode` made."""
    total, at = 0, 0
    while at < len(result):
        tag, at = result[at], at + 1
        size, at = _varint(result, at)
        if tag & 7 == _VARINT:
            continue
        if tag == _SEQUENCE:
            total += _of_sequence(result, at, at + size)
        at += size
    return total


def _of_sequence(result: bytes, at: int, end: int) -> int:
    while at < end:
        tag, at = result[at], at + 1
        size, at = _varint(result, at)
        if tag == _TOKENS:
            return size // _INT32_BYTES
        if tag & 7 != _VARINT:
            at += size
    return 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number there, and where it ends."""
    value, shift = 0, 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
