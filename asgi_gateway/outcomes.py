"""What is counted and written of a settled sample: its outcome, and where its time went."""

import logging
from typing import Final

from asgi_gateway.access.quota import Quota
from asgi_gateway.admin.recent import Failed, Recent
from asgi_gateway.metrics import Metrics
from asgi_gateway.samplelog import SampleLog, own_words
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import CANCELLED, FAILED, GONE, SUCCEEDED
from asgi_gateway.tracing.traces import Traces

log = logging.getLogger(__name__)

OUTCOMES: Final = {
    SUCCEEDED: "succeeded",
    FAILED: "failed",
    CANCELLED: "cancelled",
    GONE: "gone",
}


class Outcomes:
    """Told of every sample once, when it is settled."""

    def __init__(
        self,
        metrics: Metrics,
        samplelog: SampleLog | None = None,
        quota: Quota | None = None,
        traces: Traces | None = None,
    ) -> None:
        self._metrics = metrics
        self._samplelog = samplelog
        self._quota = quota
        self.traces = traces or Traces()
        self._traced = self.traces.held
        self.recent = Recent()

    def settled(self, record: Record, now: float, answered_at: float = 0.0) -> None:
        """Count one sample: the time in line of each, the upstream's of those that were sent, and
        the gateway's own of those with a result, whose answer had come at `answered_at`.

        Both are of all its runs together, so neither counts a sample that was tried again twice.
        """
        upstream_s = record.upstream_s + (now - record.started_at if record.started_at else 0.0)
        queued_s = now - record.accepted_at - upstream_s
        outcome = OUTCOMES[record.state]
        self._metrics.samples[outcome] += 1
        self._metrics.sample_duration.observe(queued_s + upstream_s)
        self._metrics.stage("queued", queued_s)
        if record.attempts:
            self._metrics.stage("upstream", upstream_s)
        if answered_at:
            self._metrics.overhead.observe(now - answered_at)
        if record.state is not SUCCEEDED:
            self._remember(record, outcome, now)
        if self._quota is not None:
            self._quota.settled(record.caller)
        trace = self.traces.settled(record, outcome, now) if self._traced else None
        if self._samplelog is not None:
            self._samplelog.settled(record, outcome, queued_s, upstream_s, trace)

    def withdrawn(self, record: Record) -> None:
        """It was never run here, nor is it settled here."""
        if self._quota is not None:
            self._quota.settled(record.caller)
        self._traced.pop(record.request_id, None)

    def failed(self, record: Record, text: str) -> None:
        """Say why a sample has no result."""
        log.warning("sample %s failed: %s", record.request_id, text, extra=_extra(record))

    def handed_back(self, record: Record, error: Exception) -> None:
        """Say why a sample is interrupted."""
        text = "sample %s handed back to its client: %s"
        log.warning(text, record.request_id, error, extra=_extra(record))

    def bug(self, record: Record, error: Exception) -> None:
        """Say and count what must not happen."""
        text = "bug while running %s"
        log.error(text, record.request_id, exc_info=error, extra=_extra(record))
        self._metrics.bugs += 1

    def _remember(self, record: Record, outcome: str, now: float) -> None:
        failure = record.failure
        self.recent.add(
            Failed(
                now,
                record.request_id,
                outcome,
                failure.category if failure is not None else None,
                own_words(failure.text) if failure is not None else "",
            )
        )


def _extra(record: Record) -> dict[str, str]:
    """For logs that have fields."""
    return {"request_id": record.request_id}
