"""Spans of settled samples to a collector, with the SDK of OpenTelemetry. Imported where it is used
only: it is an extra."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from asgi_gateway.addresses import shown_url
from asgi_gateway.tracing.spans import Settled, Try

NAME: Final = "asgi-gateway"
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SCOPE: Final = InstrumentationScope("asgi_gateway")
_NS: Final = 1e9
_shown: Final = functools.lru_cache(maxsize=1024)(shown_url)


class NotTaken(Exception):
    """The collector did not take a batch; the exporter has said why."""


class Otlp:
    """A `writer.Sink`."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._resource = resource()

    def __repr__(self) -> str:
        return "the collector of spans"

    def write(self, items: list[Settled]) -> tuple[int, Exception | None]:
        spans = [span for one in items for span in self._spans(one)]
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return len(items), None
        return 0, NotTaken("it takes no spans")

    def close(self) -> None:
        self._exporter.shutdown()

    def _spans(self, one: Settled) -> Iterator[ReadableSpan]:
        """Of the sample, and of each of its tries."""
        trace = one.trace
        state = TraceState.from_header([trace.tracestate]) if trace.tracestate else TraceState()
        trace_id = int(trace.trace_id, 16)

        def context(span_id: int, *, remote: bool = False) -> SpanContext:
            return SpanContext(trace_id, span_id, remote, _SAMPLED, state)

        def span(
            name: str,
            kind: SpanKind,
            parent: SpanContext | None,
            span_id: int,
            times: tuple[float, float],
            attributes: Mapping[str, Any],
            *,
            failed: bool,
        ) -> ReadableSpan:
            # Made whole: a tracer would take the time of now, its own ids, and three times as long.
            return ReadableSpan(
                name,
                context(span_id),
                parent,
                self._resource,
                {key: value for key, value in attributes.items() if value is not None},
                kind=kind,
                status=Status(StatusCode.ERROR) if failed else Status(),
                start_time=round((times[0] + one.epoch_s) * _NS),
                end_time=round((times[1] + one.epoch_s) * _NS),
                instrumentation_scope=_SCOPE,
            )

        client = context(trace.parent_span, remote=True) if trace.parent_span else None
        own = int(trace.parent_id, 16)
        failed = one.outcome in ("failed", "gone")
        of_sample = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": one.model,
            "gen_ai.usage.input_tokens": one.prompt_tokens,
            "gen_ai.usage.output_tokens": one.sampled_tokens,
            "error.type": one.category,
            "sample.outcome": one.outcome,
            "sample.request_id": one.request_id,
            "sample.session_id": one.sampling_session_id,
            "sample.attempts": one.attempts,
        }
        last = trace.tries[-1] if trace.tries else None
        if last is not None:
            of_sample["sample.upstream"] = _shown(last.upstream)
        times = (one.accepted_at, one.settled_at)
        yield span("sample", SpanKind.SERVER, client, own, times, of_sample, failed=failed)
        for this, end_s in _ends(trace.tries, one.upstream_s):
            yield span(
                "POST /v1/completions",
                SpanKind.CLIENT,
                context(own),
                this.span_id,
                (this.started_at, end_s),
                {
                    "http.request.method": "POST",
                    "server.address": _shown(this.upstream),
                    "sample.attempt": this.attempt,
                },
                failed=this is not last or failed,
            )


def _ends(tries: list[Try], upstream_s: float) -> Iterator[tuple[Try, float]]:
    """Each try and when it ended."""
    if not tries:
        return
    for this, after in zip(
        tries, [*(one.upstream_s for one in tries[1:]), upstream_s], strict=True
    ):
        yield this, this.started_at + after - this.upstream_s


def resource() -> Resource:
    """As OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, else called by our name."""
    given = Resource.create()
    if str(given.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return given.merge(Resource({SERVICE_NAME: NAME}))
    return given


def exporter(endpoint: str) -> SpanExporter:
    """endpoint: where spans are posted; as OTEL_EXPORTER_OTLP_* say where it is empty."""
    return OTLPSpanExporter(endpoint=endpoint or None)
