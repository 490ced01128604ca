"""This process among those that share the store: its lease, its name, and the dead.

    {prefix}:workers       set of epochs
    {prefix}:lease:<epoch> is there while its process renews it
    {prefix}:key           the key of the MAC in ids, made by whoever came first

A process whose lease ran out is buried: its epoch is fenced in every group, its unfinished samples
are lost, which their clients are told, and nothing that it still says is heard. If it was only
slow, it finds itself fenced and goes on under a new epoch.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final

from asgi_gateway.clock import Clock
from asgi_gateway.ids import Ids
from asgi_gateway.shared.errors import SharedStoreError
from asgi_gateway.shared.groups import GROUPS, tags
from asgi_gateway.shared.link import Link
from asgi_gateway.shared.outcomes import Adopted, Buried, CorruptReply
from asgi_gateway.shared.subscription import Subscription
from asgi_gateway.shared.verbs import Verbs

log = logging.getLogger(__name__)

# Renewed so often in its time, so that one lost try is not the end.
BEATS_PER_LEASE: Final = 3
# A process whose beats were this share of its lease apart was not heard, or the server was not
# there: then others were not either, and none of them is taken for dead for a while.
STEADY_SHARE: Final = 2 / 3
# Groups buried at once.
BURIED_AT_ONCE: Final = 32
BURY_LOCK_MS: Final = 10_000
# Groups whose expired outcomes are dropped in each second, by each process.
SWEPT_PER_S: Final = 32


class Member:
    def __init__(
        self,
        link: Link,
        verbs: Verbs,
        ids: Ids,
        clock: Clock,
        *,
        prefix: str,
        lease_s: float,
        on_message: Callable[[bytes], None],
        on_gap: Callable[[], None],
        on_fenced: Callable[[], None],
        on_forgotten: Callable[[], None],
        on_adopted: Callable[[list[Adopted]], None] | None,
    ) -> None:
        """on_fenced: everything unfinished here is lost; called under the new epoch. on_forgotten:
        the shared store has lost what it knew. on_adopted: takes what a dead process had to run;
        None where that is lost."""
        self._link = link
        self._verbs = verbs
        self._ids = ids
        self._clock = clock
        self._prefix = prefix
        self._workers = f"{prefix}:workers"
        self._lease_s = lease_s
        self._on_message = on_message
        self._on_gap = on_gap
        self._on_fenced = on_fenced
        self._on_adopted = on_adopted
        self._on_forgotten = on_forgotten
        self._first_group = tags(prefix)[0]
        self._key: bytes | None = None
        # Whether the shared store has our name, as far as we know.
        self._known = False
        self._beat_now = asyncio.Event()
        self._heard_at = self._steady_since = float("-inf")
        # The last beat, whatever came of it.
        self._tried_at = clock.now()
        self._subscription: Subscription
        self._task: asyncio.Task[None] | None = None
        self._renewing: set[asyncio.Task[None]] = set()
        self._fenced_at = float("-inf")
        self._swept_at, self._next_group = clock.now(), 0
        self.fenced_count = 0
        self.buried_count = 0
        self.lost_count = 0
        self.adopted_count = 0

    def __repr__(self) -> str:
        return f"<Member {self._ids.epoch}>"

    async def key(self) -> bytes:
        """The key that all processes share. Raises SharedStoreError."""
        name = f"{self._prefix}:key"
        await self._link.ask(None, ("SET", name, secrets.token_hex(32), "NX"))
        key: bytes = await self._link.ask(None, ("GET", name))
        self._key = key
        return key

    def open(self) -> None:
        self._subscribe()
        self._task = asyncio.get_running_loop().create_task(self._beat_for_ever())

    async def close(self, *, told: bool) -> None:
        """Leave. told: nothing of ours is unfinished in the shared store; else others bury us."""
        for task in (self._task, *self._renewing):
            if task is not None:
                task.cancel()
        try:
            if told:
                await self._link.ask(None, ("SREM", self._workers, self._ids.epoch))
            await self._link.ask(None, ("DEL", self._lease(self._ids.epoch)))
        except SharedStoreError as error:
            log.warning("left the shared store without a word: %s", error)

    def _subscribe(self) -> None:
        channel = f"{self._prefix}:to:{self._ids.epoch}"
        self._subscription = self._link.subscribe(channel, self._on_message, self._gap)

    def _gap(self) -> None:
        self._beat_now.set()  # what is there may be another server, or an empty one
        self._on_gap()

    async def tell_all(self, message: str) -> None:
        """Publish to every other process. Raises SharedStoreError."""
        ask = self._link.ask
        members: Any = await ask(None, ("SMEMBERS", self._workers))
        others = [name.decode() for name in members if name != self._ids.epoch.encode()]
        await asyncio.gather(
            *[ask(None, ("PUBLISH", f"{self._prefix}:to:{epoch}", message)) for epoch in others]
        )

    # --- the lease -------------------------------------------------------------------------------

    async def _beat_for_ever(self) -> None:
        while True:
            try:
                await self._beat()
            except (SharedStoreError, CorruptReply) as error:
                log.debug("no beat: %s", error)
            except Exception:
                log.exception("bug in the beat of the shared store")
            self._tried_at = self._clock.now()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease_s / BEATS_PER_LEASE):
                    await self._beat_now.wait()
            self._beat_now.clear()

    async def _beat(self) -> None:
        epoch, ask = self._ids.epoch, self._link.ask
        lease_ms = round(self._lease_s * 1000)
        # A server without memory left refuses SET, and takes this.
        renewed, members, fenced = await asyncio.gather(
            ask(None, ("PEXPIRE", self._lease(epoch), lease_ms)),
            ask(None, ("SMEMBERS", self._workers)),
            ask(0, ("HEXISTS", self._first_group + b":c", f"f{epoch}")),
        )
        if epoch != self._ids.epoch:
            return  # fenced meanwhile
        if fenced:
            self.fenced()
            return
        if not renewed:
            await ask(None, ("SET", self._lease(epoch), "1", "PX", lease_ms))
        if epoch.encode() not in members:
            await ask(None, ("SADD", self._workers, epoch))
            if self._known:
                await self._forgotten()
            self._known = True
        if self._is_steady():
            others = [name.decode() for name in members if name != epoch.encode()]
            alive = await asyncio.gather(*[ask(None, ("EXISTS", self._lease(e))) for e in others])
            for other, is_alive in zip(others, alive, strict=True):
                if not is_alive:
                    await self._bury(other)

    def _is_steady(self) -> bool:
        """Whether the shared store was there for a whole lease, so that all could renew theirs."""
        now = self._clock.now()
        if now - self._heard_at > self._lease_s * STEADY_SHARE:
            self._steady_since = now
        self._heard_at = now
        return now - self._steady_since >= self._lease_s

    async def _forgotten(self) -> None:
        log.error("the shared store has lost what it knew; telling it anew")
        if self._key is not None:
            await self._link.ask(None, ("SET", f"{self._prefix}:key", self._key, "NX"))
        self._on_forgotten()

    async def _bury(self, epoch: str) -> None:
        """End the samples of a dead process."""
        lock = f"{self._prefix}:bury:{epoch}"
        mine = ("SET", lock, self._ids.epoch, "NX", "PX", BURY_LOCK_MS)
        if await self._link.ask(None, mine) is None:
            return
        lost, before = 0, self.adopted_count
        for first in range(0, GROUPS, BURIED_AT_ONCE):
            groups = range(first, min(first + BURIED_AT_ONCE, GROUPS))
            lost += sum(await asyncio.gather(*[self._bury_in(group, epoch) for group in groups]))
        await self._link.ask(None, ("SREM", self._workers, epoch))
        await self._link.ask(None, ("DEL", lock))
        self.buried_count += 1
        self.lost_count += lost
        log.warning(
            "gateway %s is dead: %d of its samples are given back, %d run here now",
            epoch,
            lost,
            self.adopted_count - before,
        )

    async def _bury_in(self, group: int, epoch: str) -> int:
        lost = 0
        while True:
            adopt = self._on_adopted is not None
            found: Buried = await self._verbs.ask(self._verbs.bury(group, epoch, None, adopt=adopt))
            lost += found.lost
            if found.adopted and self._on_adopted is not None:
                self.adopted_count += len(found.adopted)
                self._on_adopted(found.adopted)
            if not found.left:
                return lost

    def _lease(self, epoch: str) -> str:
        return f"{self._prefix}:lease:{epoch}"

    def is_doubtful(self) -> bool:
        """Whether this process stood still so long that others may have buried it."""
        return self._clock.now() - self._tried_at > self._lease_s and self._link.up

    # --- fenced ----------------------------------------------------------------------------------

    def fenced(self) -> None:
        """What was sent under an epoch may be answered some time after it ended: one fence is
        many answers."""
        now = self._clock.now()
        if now - self._fenced_at < 2 * self._lease_s:
            return
        self._fenced_at = now
        self._known = False
        self.fenced_count += 1
        before = self._ids.epoch
        self._ids.renew()
        self._verbs.epoch = self._ids.epoch
        log.error("taken for dead as %s, going on as %s", before, self._ids.epoch)
        task = asyncio.get_running_loop().create_task(self._renew(self._subscription))
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)
        self._subscribe()
        self._on_fenced()

    async def _renew(self, old: Subscription) -> None:
        await self._link.unsubscribe(old)
        with contextlib.suppress(SharedStoreError, CorruptReply):  # else with the next one
            await self._beat()

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Drop expired outcomes in some of the groups."""
        due = int((now - self._swept_at) * SWEPT_PER_S)
        if due < 1 or not self._link.up:
            return
        self._swept_at = now
        for _ in range(min(due, SWEPT_PER_S)):
            self._sweep(self._next_group)
            self._next_group = (self._next_group + 1) % GROUPS

    def _sweep(self, group: int) -> None:
        def done(swept: Any) -> None:
            if not isinstance(swept, Exception) and swept.more:
                self._sweep(group)

        self._verbs.send(self._verbs.sweep(group, None), done)
