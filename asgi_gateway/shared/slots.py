"""Which server of a cluster has which slot."""

import binascii
from typing import Any, Final

from asgi_gateway.shared.address import Server
from asgi_gateway.shared.errors import Unreachable
from asgi_gateway.shared.refusals import SLOTS

GROUPS: Final = 256


def slots_of_groups(prefix: str) -> list[int]:
    """The slot of every group: all its keys begin with {prefix:gg}, of which the inside counts."""
    return [slot_of(b"%b:%02x" % (prefix.encode(), group)) for group in range(GROUPS)]


def slot_of(tag: bytes) -> int:
    """Of a key that is or contains `tag` in braces. Slots are by CRC-16/XMODEM."""
    return binascii.crc_hqx(tag, 0) % SLOTS


class SlotMap:
    """Ranges of slots and their primaries."""

    def __init__(self, ranges: list[tuple[int, int, Server]]) -> None:
        self._ranges = ranges

    def __repr__(self) -> str:
        return f"<SlotMap of {len(self._ranges)} ranges, {len(self.servers)} servers>"

    @property
    def servers(self) -> set[Server]:
        return {server for _, _, server in self._ranges}

    def server(self, slot: int) -> Server | None:
        """None: nobody has it now."""
        for first, last, server in self._ranges:
            if first <= slot <= last:
                return server
        return None


def read(reply: Any, asked: Server) -> SlotMap:
    """The reply to CLUSTER SLOTS: [[first, last, [host, port, ...], replicas...], ...].

    Raises:
        Unreachable: that is not what it is.
    """
    if not isinstance(reply, list):
        raise Unreachable(f"{asked}: its map of slots cannot be read")
    ranges = []
    for entry in reply:
        match entry:
            case [int(first), int(last), [bytes() | None as host, int(port), *_], *_] if (
                0 <= first <= last < SLOTS and 0 < port < 65_536
            ):
                # Without a host it is the one that was asked; "?" is one not known yet.
                name = host.decode("utf-8", "replace") if host else asked.host
                if name != "?":
                    ranges.append((first, last, Server(name, port)))
            case _:
                raise Unreachable(f"{asked}: its map of slots cannot be read")
    return SlotMap(ranges)
