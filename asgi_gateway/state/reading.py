"""Reading the journal's files, as far as each of them can be trusted."""

import logging
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from asgi_gateway.state.events import (
    FRAME,
    HEADER_BYTES,
    Closed,
    Event,
    UnknownEvent,
    decode,
    header_is_whole,
)
from asgi_gateway.state.tally import Tally

log = logging.getLogger(__name__)


class Found:
    """What the files held, beside their events.

    tally: bytes. tail_bytes: how much of the last file is good. unknown_events: of newer gateways,
    passed over. unreadable_events: whole records that are no event, passed over as well, since
    their CRC vouches for what follows. bad_bytes: not read, because a record before them is broken.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.tail_bytes = 0
        self.unknown_events = 0
        self.unreadable_events = 0
        self.bad_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<Found {self.tally.total_bytes} bytes, {self.bad_bytes} more are bad,"
            f" {self.unknown_events} events unknown, {self.unreadable_events} unreadable>"
        )


def check_versions(paths: Sequence[Path]) -> None:
    """Raises StateVersion where one file is of another version, and OSError."""
    for path in paths:
        with path.open("rb") as file:
            header_is_whole(file.read(HEADER_BYTES), path)


def read_events(paths: Sequence[Path], found: Found) -> Iterator[Event]:
    """All events of the files in order, one file in memory at a time. Raises OSError."""
    for path in paths:
        yield from _read_file(path, found, is_last=path is paths[-1])


def _read_file(path: Path, found: Found, *, is_last: bool) -> Iterator[Event]:
    data = path.read_bytes()
    unknown = unreadable = 0
    good_bytes = min(HEADER_BYTES, len(data))
    for payload in _payloads(data):
        nbytes = FRAME.size + len(payload)
        good_bytes += nbytes
        try:
            event = decode(payload)
        except UnknownEvent:
            unknown += 1
        except msgspec.DecodeError:
            unreadable += 1
        else:
            # Which ones are closed is known at the end, and counted then: see `Tally.settle`.
            if type(event) is not Closed:
                found.tally.count_live(event, nbytes)
            yield event
    bad_bytes = len(data) - good_bytes
    found.tally.total_bytes += good_bytes
    found.tail_bytes = good_bytes
    found.unknown_events += unknown
    found.unreadable_events += unreadable
    found.bad_bytes += bad_bytes
    if bad_bytes and is_last:
        log.warning("%s: cutting off a torn tail of %d bytes", path, bad_bytes)
    elif bad_bytes:
        log.error("%s: damaged; its last %d bytes are not read", path, bad_bytes)
    # A last file that is shorter is one whose making was interrupted.
    if (len(data) >= HEADER_BYTES or not is_last) and not header_is_whole(data, path):
        log.error("%s: the header is damaged; every record is checked on its own", path)
    if unknown:
        log.warning("%s: passed over %d events of a newer gateway", path, unknown)
    if unreadable:
        log.error("%s: passed over %d records that are no events", path, unreadable)


def _payloads(data: bytes) -> Iterator[memoryview]:
    """The payloads behind the header, up to the first record that is not whole.

    They are read behind a damaged header too: each has a CRC of its own.
    """
    view = memoryview(data)
    at = HEADER_BYTES
    while at + FRAME.size <= len(data):
        length, crc = FRAME.unpack_from(data, at)
        start = at + FRAME.size
        at = start + length
        payload = view[start:at]
        # No record is empty, while blocks of zeros, which a power cut can leave behind, would
        # otherwise be taken for empty records: the CRC of nothing is 0.
        if not length or at > len(data) or zlib.crc32(payload) != crc:
            return
        yield payload
