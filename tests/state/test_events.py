"""The records' bytes: exact, compact, and readable by older and newer gateways."""

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgi_gateway.state import StateVersion
from asgi_gateway.state.events import (
    FRAME,
    HEADER_BYTES,
    VERSION,
    Accepted,
    Booted,
    Closed,
    Event,
    Joined,
    SamplingMade,
    SessionFinished,
    SessionForgotten,
    SessionMade,
    UnknownEvent,
    decode,
    frame_into,
    frames_in,
    header,
    header_is_whole,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53 + 1, 2**63 - 1, -1]))
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Booted, TEXT, INT64),
    st.builds(SessionMade, TEXT, TEXT),
    st.builds(SessionFinished, TEXT),
    st.builds(SessionForgotten, TEXT),
    st.builds(SamplingMade, TEXT, TEXT, INT64, TEXT, TEXT, TEXT, st.none() | TEXT),
    st.builds(Joined, TEXT, INT64),
    st.builds(Accepted, TEXT, TEXT, TEXT, INT64, st.binary(min_size=16, max_size=16)),
    st.builds(Closed, TEXT),
)


def framed(event: Event) -> bytes:
    buffer = bytearray()
    assert frame_into(buffer, event) == len(buffer)
    return bytes(buffer)


@given(EVENTS)
def test_what_is_read_is_what_was_written(event: Event) -> None:
    frame = framed(event)
    length, crc = FRAME.unpack_from(frame)
    payload = frame[FRAME.size :]
    assert (length, crc) == (len(payload), zlib.crc32(payload))
    read = decode(payload)
    assert type(read) is type(event)
    assert read == event


@given(st.lists(EVENTS, max_size=5))
def test_frames_are_counted(events: list[Event]) -> None:
    assert frames_in(bytearray().join(map(framed, events))) == len(events)


def test_a_sample_takes_few_bytes() -> None:
    request_id = "0123456789-1ffff-ABCDEFGHIJKLMNOP"
    sample = Accepted(request_id, "alice", "sampler-" + 24 * "0", 2**62, 16 * b"d")
    assert len(framed(sample)) + len(framed(Closed(request_id))) < 160


@pytest.mark.parametrize("seq_id", [2**64, -(2**63) - 1])
def test_an_integer_beyond_64_bits_leaves_nothing_behind(seq_id: int) -> None:
    buffer = bytearray(b"before")
    with pytest.raises(OverflowError):
        frame_into(buffer, Joined("sampler", seq_id))
    with pytest.raises(UnicodeEncodeError):
        frame_into(buffer, Closed("\ud800"))
    assert buffer == b"before"


def test_events_of_a_newer_gateway() -> None:
    for tag in (0, 9, 200):
        with pytest.raises(UnknownEvent):
            decode(msgspec.msgpack.encode([tag, "whatever", {"a": 1}]))
    # A field more at the end of an event that we know.
    assert decode(msgspec.msgpack.encode([8, "id-1", "new"])) == Closed("id-1")


@pytest.mark.parametrize("plain", [[], [8], [8, 1], ["8", "x"], {"a": 1}, 7, [None], [True]])
def test_what_is_no_event(plain: object) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(msgspec.msgpack.encode(plain))
    with pytest.raises(msgspec.DecodeError):
        decode(msgspec.msgpack.encode(plain)[:-1] + b"\xc1")


def test_header() -> None:
    whole = header()
    assert len(whole) == HEADER_BYTES
    assert header_is_whole(whole + b"records", "x")
    for cut in range(HEADER_BYTES):
        assert not header_is_whole(whole[:cut], "x")
        flipped = bytearray(whole)
        flipped[cut] ^= 0x01
        assert not header_is_whole(bytes(flipped), "x")


def test_header_of_another_version() -> None:
    stem = whole_stem(VERSION + 1)
    with pytest.raises(StateVersion, match=r"here/x is a journal of version 2, .* version 1"):
        header_is_whole(stem + zlib.crc32(stem).to_bytes(4, "little"), "here/x")
    other = b"SOMETHIN" + stem[8:]
    assert not header_is_whole(other + zlib.crc32(other).to_bytes(4, "little"), "x")


def whole_stem(version: int) -> bytes:
    return header()[:8] + version.to_bytes(4, "little")
