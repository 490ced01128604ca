"""Whether spans can be sent, and where to."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Final

from asgi_gateway.addresses import fault_of, shown_url
from asgi_gateway.clock import Clock
from asgi_gateway.settings import Settings, SettingsError, TracingSettings
from asgi_gateway.tracing.traces import SpanTraces, Traces
from asgi_gateway.writer import Writer

# Of samples; some kilobytes each.
MAX_QUEUED: Final = 8192
PER_EXPORT: Final = 128
_NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def problems(settings: TracingSettings) -> Iterator[str]:
    """What keeps spans from being made."""
    if not settings.otlp:
        return
    if not all(map(_there, _NEEDED)):
        yield "tracing.otlp: OpenTelemetry is not installed: pip install 'asgi-gateway[otel]'"
    if settings.endpoint and (fault := fault_of(settings.endpoint)):
        yield f"tracing.endpoint: {shown_url(settings.endpoint)!r} {fault}"


def traces(settings: Settings, clock: Clock, model_of: Callable[[str], str | None]) -> Traces:
    """model_of: the upstream's name for the weights of a sampling session.

    Raises:
        SettingsError: spans are asked for and cannot be made.
    """
    given = settings.tracing
    if not given.otlp:
        return Traces()
    found = list(problems(given))
    if found:
        raise SettingsError(found)
    from asgi_gateway.tracing import otlp  # an extra, and a third of a second

    sink = otlp.Otlp(otlp.exporter(given.endpoint))
    writer = Writer("tracing.otlp", sink, most=MAX_QUEUED, at_once=PER_EXPORT)
    return SpanTraces(writer, given.share, clock, model_of)


def _there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
