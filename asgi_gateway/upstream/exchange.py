"""One POST to an upstream, as both transports and those who wait for its outcome see it."""

import abc
import errno
import sys
from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

import msgspec

from asgi_gateway.errors import Unreadable
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.upstream.large import Permit

# What a connect fails with where this machine has no more of something.
_OURS: Final = frozenset(
    {errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
)


def is_ours(error: BaseException) -> bool:
    """Whether a connect failed for want of something of ours: ports, descriptors, memory."""
    return isinstance(error, OSError) and error.errno in _OURS


def too_large(cap_bytes: int) -> Unreadable:
    """What comes of a request whose answer goes on beyond its bound."""
    return Unreadable(
        f"the upstream's answer has over {cap_bytes} bytes, more than was asked for can take"
        " (upstream.answer_bytes)"
    )


class Answer(msgspec.Struct, frozen=True):
    """A whole HTTP answer, whatever its status; `retry_after` is the header of that name.

    The body is in the pieces in which it came, at least one: who reads it joins them, in a turn of
    the loop that has room for it. Hundreds of large answers end in one turn.
    """

    status: int
    pieces: Sequence[bytes]
    retry_after: str | None
    permit: Permit | None = None
    """Of a large one: the next comes in when this is let go of."""

    @property
    def nbytes(self) -> int:
        """Of the body."""
        return sum(map(len, self.pieces)) if len(self.pieces) > 1 else len(self.pieces[0])

    def body(self) -> bytes:
        """The pieces in one."""
        return b"".join(self.pieces) if len(self.pieces) > 1 else self.pieces[0]


class Exchange(abc.ABC):
    """One POST under way. The transport tells it what happens: at most one `answering`, then one of
    `answered` and `failed`; never from within `send`, and nothing once it was aborted.

    `work` is the transport's own: what carries the request now.
    """

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work: Any = None

    @abc.abstractmethod
    def answering(self) -> None:
        """A 2xx answer has begun: the request will not be sent again."""

    @abc.abstractmethod
    def answered(self, answer: Answer) -> None:
        """The whole answer has come."""

    @abc.abstractmethod
    def failed(self, error: Exception) -> None:
        """No whole answer: Unavailable, StaleConnection or Interrupted, or Unreadable where it has
        more bytes than it may; anything else is a bug."""

    def answer_cap(self) -> int:
        """Bytes that the answer's body may have; asked once it has grown large."""
        return sys.maxsize


class Transport(Protocol):
    """Connections to all upstreams. Opened and closed by the app, inside its event loop."""

    def open(self) -> None: ...

    async def close(self) -> None: ...

    def send(
        self,
        exchange: Exchange,
        url: str,
        body: bytes,
        *,
        request_id: str,
        affinity: str | None,
        fresh: bool = False,
        more: Sequence[tuple[str, str]] = (),
    ) -> None:
        """POST one completion to one of the configured upstreams.

        Args:
            affinity: the X-Session-ID that a router hashes; None sends none.
            fresh: use a connection that was never used before.
            more: headers beside the usual ones, valid as they are.
        """

    def abort(self, exchange: Exchange) -> None:
        """Close the upstream connection as soon as that is safe; vLLM then frees the slot."""

    def is_sent(self, exchange: Exchange) -> bool:
        """Whether a request under way is on a connection, or still waits for one."""

    def heard_within(self, url: str, seconds: float) -> bool:
        """Whether any byte of an unfinished answer came from an upstream in the last so many
        seconds, where the transport can tell."""

    def forget_addresses(self) -> None:
        """Resolve the upstreams' names anew at the next connect."""

    def reconfigure(self, settings: UpstreamSettings) -> None:
        """Other limits, from now on."""

    def serve(self, urls: Collection[str]) -> None:
        """The upstreams are these from now on; requests under way to others are over before."""
