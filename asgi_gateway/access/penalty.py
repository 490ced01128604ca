"""Wrong keys: the 401 of an address that keeps trying is held for a while.

Always 401 in the end: the SDK gives up at once on it, and would repeat a 429 for minutes. The hold
is shorter than the shortest patience of the SDK (5 s), which would repeat a request without answer.
"""

import asyncio
import ipaddress
from typing import Final

from asgi_gateway.access.quota import Bucket
from asgi_gateway.asgi import Scope
from asgi_gateway.clock import Clock

# So many wrong keys at once are answered at once, and then so many a second.
FREE: Final = 10
FREE_PER_S: Final = 0.2
HOLD_S: Final = 2.0
# A held answer costs a connection, 14 kB; an address costs 0.3 kB.
MAX_HELD: Final = 512
MAX_ADDRESSES: Final = 4096


class Penalty:
    def __init__(
        self,
        clock: Clock,
        *,
        hold_s: float = HOLD_S,
        max_held: int = MAX_HELD,
        max_addresses: int = MAX_ADDRESSES,
    ) -> None:
        self._clock = clock
        self._hold_s = hold_s
        self._max_held = max_held
        self._max_addresses = max_addresses
        self._buckets: dict[str, Bucket] = {}
        self.held = 0

    def __repr__(self) -> str:
        return f"<Penalty {len(self._buckets)} addresses, {self.held} held>"

    async def serve(self, scope: Scope) -> None:
        """Let the time pass that a wrong key from this address costs now; none at first, and none
        where too many are held already."""
        if self._is_first(address_of(scope)) or self.held >= self._max_held:
            return
        self.held += 1
        try:
            await asyncio.sleep(self._hold_s)
        finally:
            self.held -= 1

    def _is_first(self, address: str) -> bool:
        """Whether this address has tried little of late."""
        now = self._clock.now()
        bucket = self._buckets.pop(address, None)
        if bucket is None:
            bucket = Bucket(FREE, now)
            if len(self._buckets) >= self._max_addresses:
                del self._buckets[next(iter(self._buckets))]  # who has been quiet for longest
        self._buckets[address] = bucket
        return not bucket.take(FREE_PER_S, FREE, now)


def address_of(scope: Scope) -> str:
    """Whose connection it is; of IPv6 the network of 64 bits, which one host has for itself."""
    client = scope.get("client")
    host = str(client[0]) if client else ""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
