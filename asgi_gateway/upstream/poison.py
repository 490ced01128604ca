"""Tells a prompt that kills the engine from an engine that dies by itself. Pure.

An interrupted sample is given back and its client submits it again; a prompt that takes the engine
down would do so for ever. Losses are therefore counted per sample body and *episode*: all losses on
one upstream within EPISODE_S are one episode, and it counts only if that upstream has answered some
other sample since its last one, so that an upstream that is merely down accuses nobody.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import Final

import msgspec

EPISODE_S: Final = 10.0
# Bodies under suspicion; the oldest is forgotten first.
MAX_SUSPECTS: Final = 10_000


class _Episode(msgspec.Struct):
    began_at: float
    counts: bool
    accused: set[bytes]


class PoisonGuard:
    def __init__(self, after: int) -> None:
        """after: episodes in a row without a success of that body; 0 switches the guard off."""
        self.after = after
        self._episodes: dict[str, _Episode] = {}
        self._answered: dict[str, set[bytes]] = {}
        self._suspects: OrderedDict[bytes, int] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PoisonGuard {len(self._suspects)} suspects>"

    def forget_all_but(self, upstreams: Collection[str]) -> None:
        """The others are gone, each with what it lost in its last episode."""
        for kept in (self._episodes, self._answered):
            for url in kept.keys() - set(upstreams):
                del kept[url]

    def lost(self, digest: bytes, upstream: str, now: float) -> bool:
        """A sample was lost after it was sent; returns whether its body is held to be poison."""
        if not self.after:
            return False
        episode = self._episodes.get(upstream)
        if episode is None or now - episode.began_at > EPISODE_S:
            answered = self._answered.pop(upstream, set())
            episode = _Episode(now, bool(answered - {digest}), set())
            self._episodes[upstream] = episode
        if episode.counts and digest not in episode.accused:
            episode.accused.add(digest)
            self._suspects[digest] = self._suspects.pop(digest, 0) + 1
            while len(self._suspects) > MAX_SUSPECTS:
                self._suspects.popitem(last=False)
        return self._suspects.get(digest, 0) >= self.after

    def succeeded(self, digest: bytes, upstream: str) -> None:
        """An answer came: the body is innocent, and the upstream is known to work."""
        if self._suspects:
            self._suspects.pop(digest, None)
        answered = self._answered.get(upstream)
        if answered is None:
            self._answered[upstream] = {digest}
        elif len(answered) < 2:  # of two different ones, one is another
            answered.add(digest)
