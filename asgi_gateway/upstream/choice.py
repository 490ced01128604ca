"""Which upstream a sample goes to, and what a router behind it should hash. Pure.

Rendezvous hash, so that a key stays where it is when another upstream leaves, with bounded load, so
that a slow upstream holds no more than its share.
"""

import hashlib
from collections.abc import Sequence
from typing import Protocol, TypeVar

from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.store.records import Record


class Target(Protocol):
    """What is known of an upstream here; in_flight: samples at it now."""

    @property
    def url(self) -> str: ...

    @property
    def in_flight(self) -> int: ...


T = TypeVar("T", bound=Target)


class Affinity:
    """The key of a sample, for our own hash and for a router's."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._by = settings.affinity

    def of(self, record: Record) -> str | None:
        """The X-Session-ID: per sample by default, since one per session would send a whole RL run
        to one worker; None sends none."""
        if self._by == "sample":
            return f"{record.sampling_session_id}:{record.seq_id}"
        return record.sampling_session_id if self._by == "session" else None


def most(in_flight: int, targets: int) -> int:
    """Samples that one of so many targets may have of all that are in flight: 1.25 x the average,
    rounded up."""
    return -(-5 * in_flight // (4 * targets))


def pick(key: str, targets: Sequence[T], *, tries: int = 0, last: str = "") -> T:
    """The first in rank that has no more than its share with this sample; targets: at least one.

    tries: how often the sample failed before; each moves it on by one rank. last: the URL that it
    failed at, which comes last.
    """
    ranked = sorted(targets, key=lambda target: _score(key, target.url))
    if tries:
        first = tries % len(ranked)
        ranked = ranked[first:] + ranked[:first]
        ranked.sort(key=lambda target: target.url == last)
    bound = most(sum(target.in_flight for target in ranked) + 1, len(ranked))
    # One is below the average at least.
    return next(target for target in ranked if target.in_flight < bound)


def _score(key: str, url: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{url}".encode(), digest_size=8).digest()
