"""The traces of the samples in flight, beside their records: most samples have none, and a waiting
record must stay small."""

from collections.abc import Callable
from random import Random

from asgi_gateway.clock import Clock
from asgi_gateway.settings import Settings
from asgi_gateway.store.records import Record
from asgi_gateway.tracing import spans
from asgi_gateway.tracing.context import Trace
from asgi_gateway.tracing.spans import Sampled, Settled
from asgi_gateway.writer import Writer


class Traces:
    """By request id, from accept to settlement."""

    share = 0.0
    """Of the samples without a trace those that get one of ours; 0 where no spans are made."""

    def __init__(self) -> None:
        self.held: dict[str, Trace] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self.held)} held>"

    def reconfigure(self, settings: Settings) -> None:
        """See `reloads`; without spans there is nothing to change."""

    def begin(self, record: Record, trace: Trace | None) -> None:
        """A sample is accepted."""
        if trace is not None:
            self.held[record.request_id] = trace

    def renamed(self, record: Record, before: str) -> None:
        """A sample has another id than it was accepted under."""
        trace = self.held.pop(before, None)
        if trace is not None:
            self.held[record.request_id] = trace

    def headers(self, record: Record) -> tuple[tuple[str, str], ...]:
        """What its request is sent upstream with now."""
        trace = self.held.get(record.request_id)
        return trace.headers(record) if trace is not None else ()

    def settled(self, record: Record, outcome: str, now: float) -> Trace | None:  # noqa: ARG002
        """Its trace, which is not held any more."""
        return self.held.pop(record.request_id, None)


class SpanTraces(Traces):
    """Those that also make spans: of samples whose client says that its trace is sampled, and of a
    share of those that came without a trace."""

    def __init__(
        self,
        writer: Writer[Settled],
        share: float,
        clock: Clock,
        model_of: Callable[[str], str | None],
    ) -> None:
        super().__init__()
        self.writer = writer
        self.share = share
        self._clock = clock
        self._model_of = model_of
        self._random = Random()

    def reconfigure(self, settings: Settings) -> None:
        self.share = settings.tracing.share

    def begin(self, record: Record, trace: Trace | None) -> None:
        if trace is None:
            if self._random.random() >= self.share:
                return
        elif not trace.is_sampled:
            self.held[record.request_id] = trace
            return
        self.held[record.request_id] = spans.sampled(trace, self._random)

    def settled(self, record: Record, outcome: str, now: float) -> Trace | None:
        trace = self.held.pop(record.request_id, None)
        if isinstance(trace, Sampled):
            epoch_s = self._clock.wall_time() - self._clock.now()
            model = self._model_of(record.sampling_session_id)
            self.writer.put(spans.settled(trace, record, outcome, now, epoch_s, model))
        return trace
