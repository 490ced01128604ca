"""What an upstream error means for its sample: another try, an error result, or 410. Decides only.

The table for people is in `docs/behaviour.md`.
"""

import random
from collections.abc import Collection
from typing import Final

import msgspec

from asgi_gateway.errors import Aborted, EngineFault, Interrupted, Unavailable, UpstreamError
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.store.records import Failure, Record
from asgi_gateway.upstream.poison import PoisonGuard

ENGINE_FAULT_RETRY_S: Final = 1.0
BACKOFF_START_S: Final = 0.5
OURS_RETRY_S: Final = 1.0
CONNECTED_S: Final = 10.0
BACKOFF_CAP_S: Final = 15.0


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Send it again, not before that time of the monotonic clock; `reason` is a metric's label.
    earliest: not before that even if the upstream works again meanwhile."""

    not_before: float
    reason: str
    earliest: float = 0.0


class GiveBack(msgspec.Struct, frozen=True, gc=False):
    """Settle as 410: the SDK submits the sample again and no training run ends."""


Remedy = Retry | GiveBack | Failure
GIVE_BACK: Final = GiveBack()


class Remedies:
    """Counts on the record what has been tried for it, and remembers bodies that kill engines."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._poison = PoisonGuard(settings.poison_after)

    def reconfigure(self, settings: UpstreamSettings) -> None:
        """For what goes wrong from now on."""
        self._settings = settings
        self._poison.after = settings.poison_after

    def move(self, _: object, urls: Collection[str]) -> None:
        """The upstreams are these from now on."""
        self._poison.forget_all_but(urls)

    def succeeded(self, record: Record, url: str) -> None:
        self._poison.succeeded(record.digest, url)

    def after(self, record: Record, error: UpstreamError, url: str, now: float) -> Remedy:
        """What to do about a RUNNING record whose request to `url` ended in `error`."""
        if isinstance(error, Unavailable):
            return self._wait(record, error, now)
        # It was taken: what comes next is another wait.
        record.unavailable_since, record.unavailable_count = None, 0
        if isinstance(error, EngineFault) and not record.engine_faults and record.body:
            record.engine_faults += 1
            at = now + ENGINE_FAULT_RETRY_S
            return Retry(at, "engine_fault", earliest=at)
        if isinstance(error, Interrupted):
            if self._is_poison(record, error, url, now):
                times = self._settings.poison_after
                text = f"{error}; interrupted {times} times, not tried again"
                return Failure(text, "server")
            if record.reads_failed < self._settings.read_retries and record.body:
                record.reads_failed += 1
                return Retry(now, "interrupted")
            return GIVE_BACK
        return Failure(str(error), error.category)

    def _is_poison(self, record: Record, error: UpstreamError, url: str, now: float) -> bool:
        """Whether this body keeps taking the engine down; an abort is the engine's own doing."""
        if isinstance(error, Aborted):
            return False
        return self._poison.lost(record.digest, url, now)

    def _wait(self, record: Record, error: Unavailable, now: float) -> Remedy:
        """Once more at once, then with back-off within the grace time; after it, 410."""
        if error.ours:
            # Nothing was asked of the upstream, so no grace time begins.
            return Retry(now + OURS_RETRY_S, "unavailable", earliest=now + OURS_RETRY_S)
        if now - record.started_at > 2 * self._settings.connect_timeout_s + CONNECTED_S:
            # It ran for longer than connects may take: it is another time that it is away.
            record.unavailable_since, record.unavailable_count = None, 0
        record.unavailable_count += 1
        wait_s = error.retry_after_s or 0.0
        if record.unavailable_since is None:
            record.unavailable_since = now
        else:
            backoff_s = min(BACKOFF_START_S * 2.0 ** (record.unavailable_count - 2), BACKOFF_CAP_S)
            wait_s = max(wait_s, backoff_s * random.uniform(0.5, 1.0))
        if now + wait_s > record.unavailable_since + self._settings.unavailable_grace_s:
            return GIVE_BACK
        return Retry(now + wait_s, "unavailable", earliest=now + (error.retry_after_s or 0.0))
