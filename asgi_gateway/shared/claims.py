"""What the shared store says that this process runs, compared with what it does run.

A store that comes back with what it had a moment before, after a failover or a crash of its
machine, holds samples of ours as unfinished which are settled. And one whose word on a submit came
too late has taken it in, under an id of before if that was lost. Nobody else would end these while
we live: their polls would be held for ever.
"""

import asyncio
import functools
import logging
from typing import Final, Protocol

from asgi_gateway.ids import Ids
from asgi_gateway.shared.groups import GROUPS, tags
from asgi_gateway.shared.link import Link

log = logging.getLogger(__name__)

# Groups compared in each second, whatever happens: a cluster's node may fail over unseen.
COMPARED_PER_S: Final = 4
# What is adopted is in the shared store before it is here.
SURE_AFTER_S: Final = 2.0


class Holder(Protocol):
    """Who has the samples.

    unheard: groups of submits whose word came too late.
    """

    unheard: set[int]

    def confirm(self, request_id: str) -> bool:
        """Whether it is held here; an outcome that the shared store lacks is told again."""

    def disown(self, request_id: str) -> None:
        """Nothing is held of it: its client is told so."""


class Claims:
    def __init__(self, link: Link, ids: Ids, holder: Holder, prefix: str) -> None:
        self._link = link
        self._ids = ids
        self._holder = holder
        self._tags = tags(prefix)
        self._compared_at, self._next_group = float("-inf"), 0
        self.disowned = 0

    def __repr__(self) -> str:
        return f"<Claims {self.disowned} disowned>"

    def compare_all(self) -> None:
        """The shared store may be another one now."""
        for group in range(GROUPS):
            self._compare(group)

    def tick(self, now: float) -> None:
        if self._holder.unheard and self._link.up:
            groups, self._holder.unheard = self._holder.unheard, set()
            loop = asyncio.get_running_loop()
            for group in groups:
                self._compare(group)
                # Once more, for what was still on its way.
                loop.call_later(SURE_AFTER_S, self._compare, group)
        if now - self._compared_at >= 1 / COMPARED_PER_S and self._link.up:
            self._compared_at = now
            self._compare(self._next_group)
            self._next_group = (self._next_group + 1) % GROUPS

    def _compare(self, group: int) -> None:
        epoch = self._ids.epoch
        key = b"%b:o:%b" % (self._tags[group], epoch.encode())
        self._link.call(group, ("SMEMBERS", key), functools.partial(self._told, epoch))

    def _told(self, epoch: str, reply: object) -> None:
        if epoch != self._ids.epoch or not isinstance(reply, list | set):
            return  # fenced meanwhile, or with the next look
        for name in reply:
            request_id = name.decode()
            if not self._holder.confirm(request_id):
                later = functools.partial(self._still, epoch, request_id)
                asyncio.get_running_loop().call_later(SURE_AFTER_S, later)

    def _still(self, epoch: str, request_id: str) -> None:
        if epoch == self._ids.epoch and not self._holder.confirm(request_id):
            self.disowned += 1
            log.warning("the shared store has %s as ours, which is not here", request_id)
            self._holder.disown(request_id)
