"""The traces of the samples in flight, beside their records: most samples have none, and a waiting
record must stay small."""

from asgi_gateway.store.records import Record
from asgi_gateway.tracing.context import Trace


class Traces:
    """By request id, from accept to settlement. `share`: of the samples without a trace that get
    one of ours; 0 where no spans are made."""

    def __init__(self) -> None:
        self.held: dict[str, Trace] = {}
        self.share = 0.0

    def __repr__(self) -> str:
        return f"<Traces {len(self.held)} held>"

    def begin(self, record: Record, trace: Trace | None) -> None:
        """A sample is accepted."""
        if trace is not None:
            self.held[record.request_id] = trace

    def headers(self, record: Record) -> tuple[tuple[str, str], ...]:
        """What its request is sent upstream with now."""
        trace = self.held.get(record.request_id)
        return trace.headers(record) if trace is not None else ()

    def settled(self, record: Record) -> Trace | None:
        return self.held.pop(record.request_id, None)
