"""The configured upstreams: what is known of each, and which of them a sample may go to now."""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from asgi_gateway.admission import Admission
from asgi_gateway.errors import (
    Aborted,
    EngineFault,
    Interrupted,
    NotFound,
    Overloaded,
    Unavailable,
    UpstreamError,
)
from asgi_gateway.metrics import Labelled, Metrics
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.store.records import Record
from asgi_gateway.upstream.breaker import HALF_OPEN, Breaker
from asgi_gateway.upstream.choice import Affinity, pick
from asgi_gateway.upstream.exchange import Exchange
from asgi_gateway.upstream.run import Run
from asgi_gateway.upstream.standing import Upstream, UpstreamState, names

log = logging.getLogger(__name__)

# A generation takes minutes; one that has not failed for so long will not fail at the door.
SURVIVED_S: Final = 2.0
NOT_AVAILABLE: Final = "the inference server is not available"
WAITED_IN_VAIN: Final = f"{NOT_AVAILABLE}, and was not for too long"
# Of the objection to new samples.
SOURCE: Final = "upstreams"


class Fleet:
    """available: those that a sample may go to now. Time is an argument.

    admission: new samples are refused while there are none. recovered: told when an upstream that
    had failed works again; it must not start samples.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        *,
        admission: Admission,
        recovered: Callable[[], None],
    ) -> None:
        self.affinity = Affinity(settings).of
        self._admission = admission
        self._recovered = recovered
        self.upstreams = tuple(
            Upstream(url, name, Breaker(settings.breaker_failures, settings.breaker_probes))
            for url, name in zip(settings.urls, names(settings.urls), strict=True)
        )
        self.available = list(self.upstreams)

    def __repr__(self) -> str:
        return f"<Fleet {len(self.available)} of {len(self.upstreams)} available>"

    @property
    def states(self) -> list[UpstreamState]:
        return [upstream.state for upstream in self.upstreams]

    @property
    def reason(self) -> str:
        """Why there is none available."""
        each = "; ".join(f"{upstream.name} {upstream.why_not}" for upstream in self.upstreams)
        return f"no upstream is available: {each}"

    # --- choice ----------------------------------------------------------------------------------

    def choose(self, record: Record) -> Upstream:
        """Where a sample goes now; something must be available."""
        available = self.available
        if len(available) == 1:
            return available[0]
        key = self.affinity(record) or record.request_id
        tries = record.unavailable_count + record.engine_faults
        return pick(key, available, tries=tries, last=record.upstream)

    # --- the life of a sample --------------------------------------------------------------------

    def probes(self, upstream: Upstream, run: Exchange) -> int:
        """A sample goes there while its breaker is half open; returns the breaker's turn, to be
        given with its outcome. While it is closed, whoever sends counts in_flight by itself."""
        upstream.in_flight += 1
        upstream.probing[run] = None
        upstream.breaker.probing = len(upstream.probing)
        self._look()
        return upstream.breaker.turn

    def ended(self, run: Run) -> None:
        """It is there no more, whatever the outcome."""
        upstream = run.upstream
        upstream.in_flight -= 1
        if upstream.probing and run in upstream.probing:
            del upstream.probing[run]
            upstream.breaker.probing = len(upstream.probing)
            self._look()

    def answered(self, upstream: Upstream, turn: int, now: float) -> None:
        """A sign of life: an answer, or the beginning of one; a refusal of the request is one."""
        if upstream.breaker.succeeded(turn, now):
            self._closed(upstream)

    def failed(self, upstream: Upstream, turn: int, error: UpstreamError, now: float) -> bool:
        """What came instead of a result; returns whether it was a failure of the upstream as it is
        now."""
        if isinstance(error, Unavailable) and error.ours:
            return False
        if not _counts(error):
            self.answered(upstream, turn, now)
            return False
        current = turn == upstream.breaker.turn
        if upstream.breaker.failed(turn, now, error.retry_after_s, upstream.in_flight):
            log.warning("%s is not given samples for a while: %s", upstream.name, error)
            upstream.probing.clear()
            self._look()
        return current

    def _closed(self, upstream: Upstream) -> None:
        log.warning("%s takes samples again", upstream.name)
        upstream.probing.clear()
        upstream.breaker.probing = 0
        self._look()
        self._recovered()

    # --- time, checks, draining ------------------------------------------------------------------

    def tick(self, now: float, is_sent: Callable[[Exchange], bool]) -> None:
        """Half-open what has waited long enough, close what a probe has survived.

        is_sent: whether a request is on a connection; one that still connects proves nothing.
        """
        for upstream in self.upstreams:
            upstream.tick(now)
            breaker = upstream.breaker
            if breaker.tick(now):
                self._look()
            elif breaker.state == HALF_OPEN and self._survived(upstream, now, is_sent):
                breaker.close(now)
                self._closed(upstream)

    def _survived(
        self, upstream: Upstream, now: float, is_sent: Callable[[Exchange], bool]
    ) -> bool:
        for exchange, since in upstream.probing.items():
            if not is_sent(exchange):  # it connects, for the first time or anew
                upstream.probing[exchange] = None
            elif since is None:
                upstream.probing[exchange] = now
            elif now - since >= SURVIVED_S:
                return True
        return False

    def checked(self, upstream: Upstream, alive: bool, now: float) -> None:
        """The outcome of a health check."""
        if alive:
            upstream.heard_at = now
        if not upstream.checked(alive):
            return
        if upstream.up:
            upstream.breaker.hurry()
            log.warning("%s answers its health checks again", upstream.name)
        else:
            log.warning(
                "%s does not answer its health checks; it is given no samples", upstream.name
            )
        self._look()
        if upstream.up:
            self._recovered()

    def silent(self, now: float, for_s: float) -> Iterator[Upstream]:
        """Those with samples whose checks fail and that have answered nothing for so long."""
        for upstream in self.upstreams:
            if not upstream.up and upstream.silent_s(now) >= for_s:
                yield upstream

    def drain(self, url: str, draining: bool) -> None:
        """Give an upstream no new samples, or give it some again; what is there finishes.

        url: or the name that metrics and `states` have.

        Raises:
            NotFound: no upstream is configured with this URL.
        """
        for upstream in self.upstreams:
            if url in (upstream.name, upstream.url) or upstream.url.rstrip("/") == url.rstrip("/"):
                upstream.draining = draining
                self._look()
                if not draining:
                    self._recovered()
                return
        known = ", ".join(upstream.name for upstream in self.upstreams) or "none"
        raise NotFound(f"no upstream has this URL; configured are {known}")

    def add_to(self, metrics: Metrics) -> None:
        def each(read: Callable[[Upstream], float]) -> Callable[[], Labelled]:
            return lambda: [(upstream.name, read(upstream)) for upstream in self.upstreams]

        name = "upstream"
        for metric, kind, text, read in (
            ("upstream_inflight", "gauge", "Samples there.", each(lambda u: u.in_flight)),
            ("upstream_up", "gauge", "1: health checks pass.", each(lambda u: int(u.up))),
            ("upstream_draining", "gauge", "1: it is drained.", each(lambda u: int(u.draining))),
            (
                "breaker_state",
                "gauge",
                "0 closed, 1 half open, 2 open.",
                each(lambda u: u.breaker.state),
            ),
            (
                "breaker_opened_total",
                "counter",
                "Times that a breaker opened.",
                each(lambda u: u.breaker.opened),
            ),
        ):
            metrics.labelled(metric, kind, text, name, read)

    def _look(self) -> None:
        """See which of them are available; all of them are looked at, and there are few."""
        self.available = [
            upstream
            for upstream in self.upstreams
            if upstream.up and not upstream.draining and upstream.breaker.has_room
        ]
        if self.available:
            self._admission.clear(SOURCE)
        else:
            self._admission.object(SOURCE, self.reason, _refusal)


def _refusal(_: str) -> Overloaded:
    """Without the upstreams' names, which are for operators: the SDK repeats the submit."""
    return Overloaded(f"{NOT_AVAILABLE}; try again")


def _counts(error: UpstreamError) -> bool:
    """Whether an error speaks against the upstream. A 4xx proves that it lives; an abort is the
    engine's answer to one sample."""
    if isinstance(error, Aborted):
        return False
    return isinstance(error, (Unavailable, EngineFault, Interrupted))
