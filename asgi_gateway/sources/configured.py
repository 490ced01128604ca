"""The source that the settings name, and what is wrong with it."""

from asgi_gateway.addresses import shown_url
from asgi_gateway.clock import Clock
from asgi_gateway.settings import SettingsError, UpstreamSettings
from asgi_gateway.sources import SourceError
from asgi_gateway.sources.cached import Cached
from asgi_gateway.sources.engine_state import engine_state


def configured(settings: UpstreamSettings, clock: Clock) -> Cached | None:
    """The source of `upstream.source`; None where there is none.

    Raises:
        SettingsError: it cannot be used; the text has nothing secret.
    """
    if not settings.source:
        return None
    if settings.urls:
        # Samples for an adapter that only one of them has would be spread over all.
        problem = "upstream.source and upstream.urls exclude each other: give one of them"
        raise SettingsError([problem])
    try:
        source = engine_state(settings.source)
    except (ValueError, SourceError) as error:
        problem = f"upstream.source = {shown_url(settings.source)!r}: {error}"
        raise SettingsError([problem]) from None
    return Cached(source, clock, interval_s=settings.source_interval_s)


def problems(settings: UpstreamSettings, clock: Clock) -> tuple[str, ...]:
    """What keeps the source from being used, one line."""
    try:
        configured(settings, clock)
    except SettingsError as error:
        return error.problems
    return ()
