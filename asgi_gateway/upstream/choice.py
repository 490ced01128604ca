"""Which upstream a sample goes to, and what a router behind it should hash. Pure."""

import hashlib

from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.store.records import Record


class Choice:
    """Rendezvous hash over the configured upstreams, on the key that routers are given too."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._urls = settings.urls
        self._affinity = settings.affinity

    def affinity(self, record: Record) -> str | None:
        """The X-Session-ID: per sample by default, since one per session would send a whole RL run
        to one worker; None sends none."""
        if self._affinity == "sample":
            return f"{record.sampling_session_id}:{record.seq_id}"
        return record.sampling_session_id if self._affinity == "session" else None

    def url(self, record: Record) -> str:
        """The upstream of this try; after one that was away or failed, the next in rank."""
        if len(self._urls) == 1:
            return self._urls[0]
        key = self.affinity(record) or record.request_id
        tries = record.unavailable_count + record.engine_faults
        return sorted(self._urls, key=lambda url: _score(key, url))[tries % len(self._urls)]


def _score(key: str, url: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{url}".encode(), digest_size=8).digest()
