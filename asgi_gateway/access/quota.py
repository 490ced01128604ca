"""What each caller may have in flight and submit in a second. Where no key is configured: none."""

import math

from asgi_gateway.caller import Caller
from asgi_gateway.errors import Overloaded

# The SDK repeats a refused submit after a second whatever it is told.
_RETRY_S = 1.0


class Limited(Overloaded):
    """One caller's own limit; the SDK takes 429 on a submit as back-pressure."""

    def __init__(self, text: str, source: str, retry_after_s: float) -> None:
        super().__init__(text, source)
        self.retry_after_s = retry_after_s


class Bucket:
    """Tokens of one caller or address: `rate` a second, `burst` at most, one for each `take`."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, burst: float, now: float) -> None:
        self._tokens = burst
        self._at = now

    def take(self, rate: float, burst: float, now: float) -> float:
        """Seconds until there is a token; 0 where one was there and is taken now."""
        tokens = min(burst, self._tokens + (now - self._at) * rate)
        self._at = now
        if tokens < 1:
            self._tokens = tokens
            return (1 - tokens) / rate
        self._tokens = tokens - 1
        return 0.0


class Quota:
    """Counts by name, so that they outlive a change of the keys.

    `accepted` and `settled` are told of every sample exactly once each.
    """

    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}
        self._buckets: dict[str, Bucket] = {}

    def __repr__(self) -> str:
        return f"<Quota {self._in_flight}>"

    def in_flight(self, name: str) -> int:
        return self._in_flight.get(name, 0)

    def check(self, caller: Caller, now: float) -> None:
        """Whether a caller may submit one more sample; takes one of its tokens if so.

        Raises:
            Limited: the text names the limit.
        """
        most = caller.max_in_flight
        if most is not None and self._in_flight.get(caller.name, 0) >= most:
            raise Limited(
                f"{most} samples in flight, the limit of this API key (max_in_flight)",
                "key_in_flight",
                _RETRY_S,
            )
        rate = caller.max_requests_per_s
        if rate is None:
            return
        bucket = self._buckets.get(caller.name)
        if bucket is None:
            bucket = self._buckets[caller.name] = Bucket(caller.burst, now)
        wait_s = bucket.take(rate, caller.burst, now)
        if wait_s:
            raise Limited(
                f"{rate:g} submits a second, the limit of this API key (max_requests_per_s)",
                "key_rate",
                math.ceil(wait_s),
            )

    def accepted(self, name: str) -> None:
        self._in_flight[name] = self._in_flight.get(name, 0) + 1

    def settled(self, name: str) -> None:
        left = self._in_flight[name] - 1
        if left:
            self._in_flight[name] = left
        else:
            del self._in_flight[name]

    def forget_all_but(self, names: frozenset[str]) -> None:
        """The keys changed: drop the buckets of those that are gone."""
        self._buckets = {name: b for name, b in self._buckets.items() if name in names}
