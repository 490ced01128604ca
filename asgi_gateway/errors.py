"""Every error the gateway raises on purpose, and the HTTP status of those that reach a client.

Two channels, never mixed: an error at the door is an HTTP status; a sample that failed is a
*result*, delivered with status 200, an error text and a category. The status decides what the
tinker SDK does next (408 repeats at once, 410 submits the sample again, 404 ends the caller's
run), so each one here has a contract test against the real SDK.
"""

from typing import ClassVar, Final, Literal

Category = Literal["user", "server", "unknown"]
_CLOSE: Final = ((b"connection", b"close"),)


class GatewayError(Exception):
    """Root of all of them; `status` is the HTTP status where the error is an answer."""

    status: ClassVar[int] = 500
    headers: ClassVar[tuple[tuple[bytes, bytes], ...]] = ()
    retry_after_s: float | None = None


# --- found at the door ---------------------------------------------------------------------------


class RequestError(GatewayError):
    """The caller's doing; a repeat of the same request fails the same way."""

    status = 400


class Malformed(RequestError):
    """A value that cannot be used; the text names field, value and limit."""


class Unauthorized(RequestError):
    """No key, or one that is not good; fatal for the SDK on every route but the heartbeat."""

    status = 401
    # Without error="invalid_token", at which the SDK would try to trade its key for another.
    headers = ((b"www-authenticate", b'Bearer realm="asgi-gateway"'),)


class Forbidden(RequestError):
    """A right key that may not do this; the SDK raises at once."""

    status = 403


class NotFound(RequestError):
    """An id or path that was never issued here. Fatal for the SDK: never for an id we issued."""

    status = 404


class Foreign(NotFound):
    """An id that is not of our making: where a trainer is behind us, it may be the trainer's."""


class ForeignId(Foreign):
    """The same of an id that may be another caller's to others: where keys are configured and the
    trainer does not know it either, it is answered in our words, as another caller's is."""


class WrongMethod(RequestError):
    status = 405


class TooLarge(RequestError):
    status = 413
    headers = _CLOSE


class UnsupportedEncoding(RequestError):
    status = 415
    headers = _CLOSE


class Unsupported(RequestError):
    """Understood, and refused by name: this gateway or its upstream cannot do it."""

    status = 422


class Refusal(GatewayError):
    """Nothing wrong with the request; not now. source: what refuses, as it is counted."""

    def __init__(self, text: str, source: str = "other") -> None:
        super().__init__(text)
        self.source = source


class Overloaded(Refusal):
    """The SDK takes 429 on a submit as back-pressure and repeats for ever."""

    status = 429
    retry_after_s = 1.0


class Exhausted(Overloaded):
    """The same where every connection counts too."""

    headers = _CLOSE


class Unready(Refusal):
    """Something behind us does not answer yet, or we are draining."""

    status = 503
    retry_after_s = 1.0


class Gone(GatewayError):
    """An id that we issued and no longer hold: the SDK submits the sample again."""

    status = 410


# --- settles a sample; never raised into a handler ------------------------------------------------


class UpstreamError(GatewayError):
    """What came of a request to vLLM, other than an answer. code: what it is counted as."""

    category: Category = "server"
    code: ClassVar[str] = "other"


class Unavailable(UpstreamError):
    """The upstream did not take the request: it runs nowhere, so it may be sent again.

    `retry_after_s` is the upstream's own wish, where it gave one. `ours`: this machine had no port,
    descriptor or memory for the connection, which says nothing of the upstream.
    """

    code = "unavailable"

    def __init__(
        self, text: str, retry_after_s: float | None = None, *, ours: bool = False
    ) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.ours = ours


class StaleConnection(UpstreamError):
    """A reused idle connection closed right after our write, before any byte of an answer."""


class Interrupted(UpstreamError):
    """Sent, and no whole answer came; vLLM may still be running it, so we do not run it again."""

    code = "interrupted"


class Aborted(Interrupted):
    """The engine itself ended the sample early or answered in part, with status 200."""

    code = "aborted"


class EngineFault(UpstreamError):
    """A JSON 500: the engine answered that it failed. Worth one more try."""

    code = "engine_fault"


class Rejected(UpstreamError):
    """vLLM refused the request; a repeat cannot help."""

    code = "rejected"

    def __init__(self, text: str, category: Category) -> None:
        super().__init__(text)
        self.category = category


class Unreadable(UpstreamError):
    """A 2xx answer that does not parse or contradicts itself; nothing of it is delivered."""

    code = "unreadable"


class MissingLogprobs(Unreadable):
    """An answer without a logprob that was asked for; none is ever invented."""

    code = "missing_logprobs"


class Overdue(UpstreamError):
    """The work clock ran out while the upstream was running the sample."""


class IllegalTransition(GatewayError):
    """A bug in the gateway: logged with the record, counted, and serving goes on."""
