"""The journal's records, and what a journal file looks like. Pure.

A file is a header and then frames: u32 length, u32 CRC-32 of the payload, payload (little-endian).
A payload is one event as a msgpack array whose first element is its tag.

What may change without a new file version: a new event with a new tag (older gateways skip it and
count), and new fields at the end of an event, with defaults. Anything else raises VERSION. The
header itself keeps its layout for ever, or an older gateway could not name the newer version.
"""

import struct
import zlib
from typing import Final

import msgspec

from asgi_gateway.state import StateVersion

MAGIC: Final = b"ASGIGWJ\n"
VERSION: Final = 1
_STEM: Final = struct.Struct("<8sI")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _STEM.size + _CRC.size

FRAME: Final = struct.Struct("<II")


# gc=False: an event holds strings, bytes and numbers, so nothing can lead back to it.
class Booted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """A process began. `epoch` is the one in its ids; its completion cursors start at
    `cursor_base`, above every cursor that an earlier process gave out."""

    epoch: str
    cursor_base: int


class SessionMade(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """A ServiceClient of a caller."""

    session_id: str
    caller: str


class SessionFinished(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """Its samples are gone; its id is still known, and answers 410."""

    session_id: str


class SessionForgotten(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """Retention is over: nothing of the session is known any more."""

    session_id: str


class SamplingMade(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """A sampling session and its weights; `seq_id` is the client's number of it."""

    sampling_session_id: str
    session_id: str
    seq_id: int
    upstream_name: str
    base_model: str
    cache_salt: str
    model_path: str | None


class Joined(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """The clone number `counter` of the sampling session was given out."""

    sampling_session_id: str
    counter: int


class Accepted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """A sample whose id was given out. `seq_id` uses all of int64; `digest` is 16 bytes."""

    request_id: str
    caller: str
    sampling_session_id: str
    seq_id: int
    digest: bytes


class Closed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=8):
    """Acknowledged, delivered and expired, or evicted: the id answers 410 from now on."""

    request_id: str


Event = (
    Booted
    | SessionMade
    | SessionFinished
    | SessionForgotten
    | SamplingMade
    | Joined
    | Accepted
    | Closed
)
_KNOWN_TAGS: Final = range(1, 9)
_decoder: Final = msgspec.msgpack.Decoder(Event)
_encode: Final = msgspec.msgpack.Encoder().encode


class UnknownEvent(Exception):
    """A whole record with a tag of a newer gateway."""


def frame_into(buffer: bytearray, event: Event) -> int:
    """Append the frame of `event` to `buffer`; returns its length in bytes.

    Raises:
        OverflowError: an integer beyond 64 bits. UnicodeEncodeError: a lone surrogate in a string.
        Nothing was appended then.
    """
    payload = _encode(event)
    nbytes = len(payload)
    buffer += FRAME.pack(nbytes, zlib.crc32(payload))
    buffer += payload
    return FRAME.size + nbytes


def frames_in(buffer: bytearray) -> int:
    """How many whole frames `buffer` consists of."""
    count = at = 0
    while at < len(buffer):
        at += FRAME.size + FRAME.unpack_from(buffer, at)[0]
        count += 1
    return count


def decode(payload: bytes | memoryview) -> Event:
    """Copies out of `payload`.

    Raises:
        UnknownEvent: a tag of a newer gateway.
        msgspec.DecodeError: no event at all, though the CRC was right.
    """
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError:
        plain = msgspec.msgpack.decode(payload)
        tag = plain[0] if isinstance(plain, list) and plain else None
        if isinstance(tag, int) and tag not in _KNOWN_TAGS:
            raise UnknownEvent from None
        raise


def header() -> bytes:
    """The first HEADER_BYTES of every file."""
    stem = _STEM.pack(MAGIC, VERSION)
    return stem + _CRC.pack(zlib.crc32(stem))


def header_is_whole(data: bytes, path: object) -> bool:
    """Whether `data` begins with our header; False where it is cut short or damaged.

    Raises:
        StateVersion: an undamaged header of another version; `path` is for its text.
    """
    if data[:HEADER_BYTES] == header():
        return True
    stem = data[: _STEM.size]
    if len(data) < HEADER_BYTES or data[_STEM.size : HEADER_BYTES] != _CRC.pack(zlib.crc32(stem)):
        return False
    magic, version = _STEM.unpack(stem)
    if magic == MAGIC:
        raise StateVersion(
            f"{path} is a journal of version {version}, and this gateway reads version {VERSION}:"
            " start the gateway that wrote it, or set state.dir to another directory"
        )
    return False
