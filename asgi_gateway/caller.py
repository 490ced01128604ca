"""Who calls: what a key stands for once it was found to be right, or nobody in particular."""

from typing import Final, Literal

import msgspec

# What a route asks of a key, and what a key may be good for. "none" is served without a key.
Grant = Literal["sample", "metrics", "admin"]
Access = Literal["none", "sample", "metrics", "admin"]


class Caller(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A key without its secret. Ids and sessions are bound to the name.

    models: base models by name, paths, and `tinker://<run>/*`; None is everything.
    max_requests_per_s, burst: submits a second in the long run, and at once.
    """

    name: str
    grants: frozenset[Grant]
    models: frozenset[str] | None = None
    max_in_flight: int | None = None
    max_requests_per_s: float | None = None
    burst: int = 1


# Where no key is configured, and where a route asks for none.
DEFAULT: Final = Caller(name="default", grants=frozenset({"sample", "metrics", "admin"}))
