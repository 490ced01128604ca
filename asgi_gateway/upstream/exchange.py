"""One POST to an upstream, as both transports and those who wait for its outcome see it."""

from typing import Any, Protocol

import msgspec


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A whole HTTP answer, whatever its status; `retry_after` is the header of that name."""

    status: int
    body: bytes
    retry_after: str | None


class Exchange:
    """One POST under way. The transport tells it what happens: at most one `answering`, then one of
    `answered` and `failed`; never from within `send`, and nothing once it was aborted.

    `work` is the transport's own: what carries the request now.
    """

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work: Any = None

    def answering(self) -> None:
        """A 2xx answer has begun: the request will not be sent again."""

    def answered(self, answer: Answer) -> None:
        """The whole answer has come."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """No whole answer: Unavailable, StaleConnection or Interrupted; anything else is a bug."""
        raise NotImplementedError


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
    ) -> None:
        """POST one completion to one of the configured upstreams.

        Args:
            affinity: the X-Session-ID that a router hashes; None sends none.
            fresh: use a connection that was never used before.
        """

    def abort(self, exchange: Exchange) -> None:
        """Close the upstream connection as soon as that is safe; vLLM then frees the slot."""

    def forget_addresses(self) -> None:
        """Resolve the upstreams' names anew at the next connect."""
