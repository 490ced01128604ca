"""Whether the store is shared, and then with what; what that needs is imported only then."""

from typing import TYPE_CHECKING, Any, Final

from asgi_gateway.admission import Admission
from asgi_gateway.clock import Clock
from asgi_gateway.handshake import HandshakeHandlers
from asgi_gateway.ids import Ids
from asgi_gateway.ledger import Ledger
from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import Settings, SettingsError
from asgi_gateway.shareable import is_shared, problems
from asgi_gateway.store.budget import most_bytes
from asgi_gateway.store.memory import MemoryStore

if TYPE_CHECKING:
    from asgi_gateway.shared.whole import Shared

# An upstream that falls silent is told by the transport's read timeout, which hands the sample back
# to its client. The work clock ends it for good, so of the two it comes second.
SILENCE_FIRST_S: Final = 1.0


def sharing(settings: Settings, clock: Clock, ids: Ids, admission: Admission) -> "Shared | None":
    """Raises SettingsError, BadUrl, MissingExtra."""
    if not is_shared(settings):
        return None
    if wrong := list(problems(settings)):
        raise SettingsError(wrong)
    from asgi_gateway.shared.whole import Shared

    return Shared(settings, clock, ids, admission)


def store_of(
    settings: Settings, shared: "Shared | None", *, ledger: Ledger, cursor_base: int
) -> MemoryStore:
    """The store with the limits and lifetimes of the settings."""
    make = MemoryStore if shared is None else shared.make_store
    return make(
        work_s=settings.upstream.read_timeout_s + SILENCE_FIRST_S,
        undelivered_s=settings.store.completed_ttl_s,
        delivered_s=settings.store.retrieved_ttl_s,
        max_in_flight=settings.store.max_in_flight,
        max_bytes=most_bytes(settings.store),
        cursor_base=cursor_base,
        ledger=ledger,
    )


def add_shared(metrics: Metrics, shared: "Shared") -> None:
    from asgi_gateway.shared.figures import add_to

    add_to(metrics, shared)


def sharing_handshake(shared: "Shared | None", **parts: Any) -> HandshakeHandlers:
    if shared is None:
        return HandshakeHandlers(**parts)
    from asgi_gateway.shared.handshake import SharedHandshake

    return SharedHandshake(shared, **parts)
