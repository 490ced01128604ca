"""File descriptors: how many this process may have, and what to do when they are used up."""

import contextlib
import logging
import os
import resource
import sys
from typing import Final

from asgi_gateway.admission import Admission
from asgi_gateway.metrics import Metrics
from asgi_gateway.settings import Settings, SettingsError

log = logging.getLogger(__name__)

SOURCE: Final = "descriptors"
# What is needed beside the connections to upstreams: our own, and clients enough to be of use.
RESERVED: Final = 128
# Listeners, journal, logs, the loop's own, the few connections that ask for models.
OWN: Final = 64
# Connections that come and go at the limit are one story, not one a second.
SAID_EVERY_S: Final = 60.0


def raise_descriptor_limit() -> int:
    """Raise the soft limit on open descriptors to the hard one, where that is allowed.

    Returns how many are allowed now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def require_descriptors(limit: int, settings: Settings) -> None:
    """Raises SettingsError where so many are too few for `serve`."""
    connections = settings.upstream.max_connections
    needed = connections + RESERVED
    if limit < needed:
        problem = (
            f"{limit} descriptors are allowed, upstream.max_connections = {connections} needs"
            f" {needed} at least: raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower the"
            " setting"
        )
        raise SettingsError([problem])


def client_connections(limit: int, settings: Settings) -> int:
    """How many connections clients may have: an upstream is connected to whatever they do."""
    left = limit - settings.upstream.max_connections - OWN
    # What is passed on to a trainer takes one more for each.
    return left // 2 if settings.training.url is not None else left


class Descriptors:
    """Not ready while they are used up; logged once a minute at most, and counted."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._said_at: float | None = None
        self._reason: str | None = None
        self._full = False
        self.exhausted = 0

    def __repr__(self) -> str:
        return f"<Descriptors {self._reason or 'enough'}>"

    def tick(self, now: float) -> None:
        """Look whether there is one left: two system calls."""
        try:
            os.close(os.dup(0))
        except OSError:
            self._short("no file descriptor is free", now)
        else:
            if not self._full:
                self._enough()

    def full(self, connections: int, now: float) -> None:
        """All descriptors that clients may have are theirs; no more connections are accepted."""
        self._full = True
        self._short(f"{connections} client connections are open, which is all there may be", now)

    def room(self) -> None:
        """Connections are accepted again."""
        self._full = False
        self._enough()

    def add_to(self, metrics: Metrics) -> None:
        metrics.counter(
            "descriptors_exhausted_total",
            "Times that file descriptors were used up, or those that clients may have.",
            lambda: self.exhausted,
        )

    def _short(self, reason: str, now: float) -> None:
        if self._reason is None:
            self.exhausted += 1
            if self._said_at is None or now - self._said_at >= SAID_EVERY_S:
                self._said_at = now
                log.warning("%s: raise the limit (ulimit -Hn, LimitNOFILE=)", reason)
        if self._reason != reason:
            self._reason = reason
            self._admission.object(SOURCE, reason)

    def _enough(self) -> None:
        if self._reason is not None:
            self._reason = None
            self._admission.clear(SOURCE)
