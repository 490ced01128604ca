"""Groups: which samples live together on the shared store's server. Pure.

A group is a hash of the sampling session, and the low byte of the counter in its samples' ids: an
id leads to its group without a look-up. All keys of a group carry one hash tag, so that a function
finds them on one node of a cluster.
"""

import re
import zlib
from typing import Final

GROUPS: Final = 256
# Epoch, counter, MAC; as in `ids`.
_ID: Final = re.compile(r"[0-9a-f]{10}-([0-9a-f]{1,16})-[A-Za-z0-9_-]{16}\Z")


def group_of_session(sampling_session_id: str) -> int:
    return zlib.crc32(sampling_session_id.encode()) & (GROUPS - 1)


def group_of(request_id: str) -> int | None:
    """The group of an id; None where it is not of our making."""
    parts = _ID.match(request_id)
    return int(parts[1][-2:], 16) if parts is not None else None


def numbered(count: int, group: int) -> int:
    """The counter of an id: the `count`th of its process, in `group`."""
    return count << 8 | group


def tags(prefix: str) -> tuple[bytes, ...]:
    """The key of each group, such as `{agw:3f}`, that all its others begin with."""
    return tuple(f"{{{prefix}:{group:02x}}}".encode() for group in range(GROUPS))
