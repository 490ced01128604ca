"""The trace that a client's request belongs to: `traceparent` and `tracestate` (W3C Trace Context,
level 1). What does not follow the grammar is dropped whole, as if it had not come."""

import re
from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
MAX_TRACESTATE: Final = 512
# `\Z` and not `$`, which would let a line feed pass into the upstream's headers.
_PARENT: Final = re.compile(rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})\Z")
_STATE: Final = re.compile(rb"[\t\x20-\x7e]+\Z")


class Sent(Protocol):
    """What of a record tells one of its tries from another (`store.records`)."""

    started_at: float
    upstream_s: float
    upstream: str


class Trace(msgspec.Struct, gc=False):
    """Both headers as they are sent on; an empty `tracestate` is not sent."""

    traceparent: str
    tracestate: str = ""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def parent_id(self) -> str:
        """The sender's span, 16 hexadecimal digits."""
        return self.traceparent[36:52]

    @property
    def is_sampled(self) -> bool:
        return bool(int(self.traceparent[53:55], 16) & 1)

    def headers(self, _: Sent) -> tuple[tuple[str, str], ...]:
        """Of a request that is sent upstream now."""
        if self.tracestate:
            return ("traceparent", self.traceparent), ("tracestate", self.tracestate)
        return (("traceparent", self.traceparent),)


def carried(headers: Iterable[Any]) -> Trace | None:
    """The trace of a request with these ASGI headers; most have none."""
    for name, _ in headers:
        if name == TRACEPARENT:
            return _read([(bytes(key), bytes(value)) for key, value in headers])
    return None


def _read(headers: list[tuple[bytes, bytes]]) -> Trace | None:
    parents = [value for name, value in headers if name == TRACEPARENT]
    # Of several none is trusted to be the client's.
    if len(parents) != 1 or _PARENT.match(parents[0].strip(b" \t")) is None:
        return None
    # Several are one list (RFC 9110, 5.3).
    state = b",".join(value for name, value in headers if name == TRACESTATE).strip(b" \t")
    if len(state) > MAX_TRACESTATE or _STATE.match(state) is None:
        state = b""
    return Trace(parents[0].strip(b" \t").decode("ascii"), state.decode("ascii"))
