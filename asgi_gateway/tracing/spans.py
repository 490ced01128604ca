"""What is kept of a sample whose trace is sampled, and what is left of it when it is settled.

While it runs this is ids and a time per try; the spans are made of it in the thread that sends them
(`tracing/otlp`).
"""

from random import Random
from typing import Final, NamedTuple

import msgspec

from asgi_gateway.codec.counted import sampled_tokens
from asgi_gateway.store.records import Record
from asgi_gateway.tracing.context import Trace

# Further tries count as part of the last: a sample that waits for its upstream may have hundreds.
MAX_TRIES: Final = 16
# Counting the tokens of more is too much of a turn of the event loop.
MAX_COUNTED_SEQUENCES: Final = 128


class Try(NamedTuple):
    """One run. upstream_s: of the runs before it, from which follows how long each took."""

    span_id: int
    attempt: int
    started_at: float
    upstream_s: float
    upstream: str


class Sampled(Trace, gc=False, kw_only=True):
    """`traceparent` names our span of the sample; `parent_span`, 0 for none, the client's."""

    parent_span: int
    random: Random
    tries: list[Try]

    def headers(self, record: Record) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        """Each try is a span of its own, which those of the upstream are below."""
        tries = self.tries
        if not tries or (tries[-1].attempt != record.attempts and len(tries) < MAX_TRIES):
            span = new_span(self.random)
            tries.append(
                Try(span, record.attempts, record.started_at, record.upstream_s, record.upstream)
            )
        parent = f"00-{self.trace_id}-{tries[-1].span_id:016x}-01"
        if self.tracestate:
            return ("traceparent", parent), ("tracestate", self.tracestate)
        return (("traceparent", parent),)


class Settled(msgspec.Struct, frozen=True, gc=False):
    """Times are of the monotonic clock; `epoch_s` leads from there to the wall's. `upstream_s`: of
    all tries."""

    trace: Sampled
    epoch_s: float
    accepted_at: float
    settled_at: float
    upstream_s: float
    request_id: str
    sampling_session_id: str
    outcome: str
    prompt_tokens: int
    sampled_tokens: int | None
    attempts: int
    model: str | None
    category: str | None


def sampled(client: Trace | None, random: Random) -> Sampled:
    """A trace whose spans are sent: below the client's span, or a new one."""
    if client is None:
        trace_id = f"{random.getrandbits(128) or 1:032x}"
        parent, state = 0, ""
    else:
        trace_id, state = client.trace_id, client.tracestate
        parent = int(client.parent_id, 16)
    return Sampled(
        f"00-{trace_id}-{new_span(random):016x}-01",
        state,
        parent_span=parent,
        random=random,
        tries=[],
    )


def settled(
    trace: Sampled, record: Record, outcome: str, now: float, epoch_s: float, model: str | None
) -> Settled:
    """What is left of a record; nothing of prompt, result and texts."""
    counted = record.result is not None and record.want.sequences <= MAX_COUNTED_SEQUENCES
    return Settled(
        trace,
        epoch_s,
        record.accepted_at,
        now,
        record.upstream_s + (now - record.started_at if record.started_at else 0.0),
        record.request_id,
        record.sampling_session_id,
        outcome,
        record.prompt_tokens,
        sampled_tokens(record.result) if counted and record.result is not None else None,
        record.attempts,
        model,
        record.failure.category if record.failure is not None else None,
    )


def new_span(random: Random) -> int:
    return random.getrandbits(64) or 1
