"""The upstreams: what is known of each, and which of them a sample may go to now."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from asgi_gateway.admission import Admission
from asgi_gateway.errors import (
    NotFound,
    Overloaded,
    Unavailable,
    UpstreamError,
)
from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.store.records import Record
from asgi_gateway.upstream import figures
from asgi_gateway.upstream.breaker import HALF_OPEN, Breaker
from asgi_gateway.upstream.choice import Affinity, pick
from asgi_gateway.upstream.exchange import Exchange
from asgi_gateway.upstream.run import Run
from asgi_gateway.upstream.standing import Upstream, UpstreamState, name_of
from asgi_gateway.upstream.verdict import speaks_against

log = logging.getLogger(__name__)

# A generation takes minutes; one that has not failed for so long will not fail at the door.
SURVIVED_S: Final = 2.0
NOT_AVAILABLE: Final = "the inference server is not available"
WAITED_IN_VAIN: Final = f"{NOT_AVAILABLE}, and was not for too long"
# Of the objection to new samples.
SOURCE: Final = "upstreams"

# The URLs that are configured, and those that may be in use still: with upstreams that leave.
Moved = Callable[[tuple[str, ...], tuple[str, ...]], None]


class Fleet:
    """available: those that a sample may go to now. Time is an argument.

    admission: new samples are refused while there are none. recovered: told when an upstream that
    had failed works again; it must not start samples. moved: told of every change of the URLs,
    before a sample goes to one that is new. doubted: told of a URL that did not take a sample or
    failed a health check. without: why there are none, where there are none.
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
        self._failures, self._probes = settings.breaker_failures, settings.breaker_probes
        self.moved: list[Moved] = []
        self.doubted: Callable[[str], None] | None = None
        self.without = "none is configured"
        self.upstreams: tuple[Upstream, ...] = ()
        self.available: list[Upstream] = []
        self._have(settings.urls)

    def __repr__(self) -> str:
        return f"<Fleet {len(self.available)} of {len(self.upstreams)} available>"

    @property
    def states(self) -> list[UpstreamState]:
        return [upstream.state for upstream in self.upstreams]

    @property
    def reason(self) -> str:
        """Why there is none available."""
        each = [f"{upstream.name} {upstream.why_not}" for upstream in self._present]
        return f"no upstream is available: {'; '.join(each) or self.without}"

    @property
    def _present(self) -> list[Upstream]:
        return [upstream for upstream in self.upstreams if not upstream.leaving]

    # --- which there are -------------------------------------------------------------------------

    def replace(self, urls: Sequence[str]) -> None:
        """Have exactly these from now on; within the event loop.

        One that stays keeps its name, breaker, checks and samples, and whether it is drained. A new
        one takes samples at once. One that is no longer among them takes none; what is there
        finishes, and with its last sample it is forgotten, unless its URL comes back before.
        """
        wanted = tuple(dict.fromkeys(urls))  # as `_have` takes them
        present = tuple(upstream.url for upstream in self._present)
        if wanted == present:
            return
        self._have(wanted)
        log.warning("upstreams now: %s", ", ".join(u.name for u in self._present) or self.without)
        self._tell_moved()
        if not set(wanted) <= set(present):
            self._recovered()

    def reconfigure(self, settings: UpstreamSettings) -> None:
        """Other limits for all, and other upstreams where it is the settings that name them."""
        self.affinity = Affinity(settings).of
        self._failures, self._probes = settings.breaker_failures, settings.breaker_probes
        for upstream in self.upstreams:
            if upstream.breaker.reconfigure(self._failures, self._probes):
                self._closed(upstream)
        if not settings.source:
            self.replace(settings.urls)
        # Not as a recovery: in an outage that would let all go that the retry budget holds.
        self._look()

    def is_without(self, why: str) -> None:
        """Why there are none, for as long as there are none."""
        self.without = why
        if not self.upstreams:
            self._look()

    def _have(self, urls: Sequence[str]) -> None:
        known = {upstream.url: upstream for upstream in self.upstreams}
        # One that goes at once leaves its name to the next at its place, another path say: charts
        # and alerts go on.
        taken = {one.name for one in self.upstreams if one.in_flight or one.url in urls}
        upstreams = []
        for url in dict.fromkeys(urls):
            upstream = known.pop(url, None)
            if upstream is None:
                name = name_of(url, taken)
                taken.add(name)
                upstream = Upstream(url, name, Breaker(self._failures, self._probes))
            upstream.leaving = False
            upstreams.append(upstream)
        for upstream in known.values():
            upstream.leaving = True
        self.upstreams = (*upstreams, *(one for one in known.values() if one.in_flight))
        self._look()

    def _forget_left(self) -> None:
        """Those that leave and have no samples any more."""
        stay = tuple(one for one in self.upstreams if one.in_flight or not one.leaving)
        if len(stay) != len(self.upstreams):
            self.upstreams = stay
            self._tell_moved()

    def _tell_moved(self) -> None:
        present = tuple(upstream.url for upstream in self._present)
        for told in self.moved:
            told(present, tuple(upstream.url for upstream in self.upstreams))

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
        if not speaks_against(error):
            self.answered(upstream, turn, now)
            return False
        if self.doubted is not None and isinstance(error, Unavailable):
            self.doubted(upstream.url)
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
        leave = False
        for upstream in self.upstreams:
            upstream.tick(now)
            leave = leave or upstream.leaving
            breaker = upstream.breaker
            if breaker.tick(now):
                self._look()
            elif breaker.state == HALF_OPEN and upstream.survived(now, SURVIVED_S, is_sent):
                breaker.close(now)
                self._closed(upstream)
        if leave:
            self._forget_left()

    def checked(self, upstream: Upstream, alive: bool, now: float) -> None:
        """The outcome of a health check."""
        if alive:
            upstream.heard_at = now
        elif self.doubted is not None:
            self.doubted(upstream.url)
        if not upstream.checked(alive) or upstream not in self.upstreams:
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
        for upstream in self._present:
            if url in (upstream.name, upstream.url) or upstream.url.rstrip("/") == url.rstrip("/"):
                upstream.draining = draining
                self._look()
                if not draining:
                    self._recovered()
                return
        known = ", ".join(upstream.name for upstream in self._present) or "none"
        raise NotFound(f"no upstream has this URL; configured are {known}")

    def add_to(self, metrics: Metrics) -> None:
        figures.add_to(metrics, lambda: self.upstreams)
        metrics.gauge(
            "upstreams_available",
            "Upstreams that a sample may go to now; at 0 new samples are refused.",
            lambda: len(self.available),
        )

    def _look(self) -> None:
        """See which of them are available; all of them are looked at, and there are few."""
        self.available = [
            upstream
            for upstream in self.upstreams
            if upstream.up
            and not (upstream.draining or upstream.leaving)
            and upstream.breaker.has_room
        ]
        if self.available:
            self._admission.clear(SOURCE)
        else:
            self._admission.object(SOURCE, self.reason, _refusal)


def _refusal(_: str) -> Overloaded:
    """Without the upstreams' names, which are for operators: the SDK repeats the submit."""
    return Overloaded(f"{NOT_AVAILABLE}; try again")
