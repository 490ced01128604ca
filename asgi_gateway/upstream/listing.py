"""The upstreams' model lists: when they are asked, and what they said last."""

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any, Final

from asgi_gateway.clock import Clock
from asgi_gateway.errors import Unavailable, Unready
from asgi_gateway.upstream.client import Client, ServedModel

log = logging.getLogger(__name__)

# Lists are asked for at most so often, however many unknown names come in.
MIN_REFRESH_S: Final = 0.5
# The others are waited for so long after each list that came.
PATIENCE_S: Final = 0.3


class Listing:
    """Asked for at start, and again for a name that is not in it."""

    def __init__(
        self,
        client: Client,
        urls: tuple[str, ...],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """changed: called after each round of asking."""
        self._client = client
        self._urls = urls
        self._clock = clock
        self._changed = changed
        self.served: dict[str, ServedModel] = {}
        # Wall time at which a name was first seen.
        self.since: dict[str, float] = {}
        # The last answer of each upstream: one that is down for a moment keeps its models.
        self._lists: dict[str, list[ServedModel]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        # Upstreams that had not answered when their round ended.
        self._late: dict[str, asyncio.Task[list[ServedModel]]] = {}
        # Rounds that began, when the last of them did, and the last that has ended.
        self._rounds = 0
        self._asked_at: float | None = None
        self._ended = 0
        self._moved = False

    def __repr__(self) -> str:
        return f"<Listing {len(self.served)} served, round {self._ended}>"

    async def refresh(self) -> None:
        """Ask every upstream once that is not being asked; who comes meanwhile shares it."""
        asking = self._ask()
        # Never without a turn of the loop, as shield() would where the round has just ended: who
        # waits for the next one would ask for it for ever before this one is put away.
        await asyncio.wait([asking])
        if not asking.cancelled():
            asking.result()

    def refresh_soon(self) -> None:
        """Begin to ask unless that was done a moment ago, and wait for nothing."""
        if not self._asked_just_now:
            self._ask()

    def move(self, urls: tuple[str, ...]) -> None:
        """The upstreams are these from now on, and are asked now.

        What the others listed stands until one of these has answered: their samplers go on.
        """
        self._urls = urls
        self._moved = self._refreshing is not None
        if urls:
            self._ask()

    async def close(self) -> None:
        """Stop asking; whoever waits for an answer goes on with what is known."""
        self._moved = False
        ending: list[asyncio.Task[Any]] = [*self._late.values()]
        if self._refreshing is not None:
            ending.append(self._refreshing)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def _ask(self) -> "asyncio.Task[None]":
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._ask_all())
            self._refreshing.add_done_callback(self._refreshed)
        return self._refreshing

    @property
    def _asked_just_now(self) -> bool:
        asked_at = self._asked_at
        return asked_at is not None and self._clock.now() - asked_at < MIN_REFRESH_S

    def _refreshed(self, task: "asyncio.Task[None]") -> None:
        self._refreshing = None
        if self._moved and self._urls and not task.cancelled():
            self._ask()
        self._moved = False

    async def _ask_all(self) -> None:
        """One round: it ends when all it asked have answered, or a moment after some have: one that
        hangs holds up nobody who needs only the others."""
        self._rounds += 1
        self._asked_at = self._clock.now()
        asked = {
            url: asyncio.create_task(self._client.models(url))
            for url in self._urls
            if url not in self._late
        }
        pending = set(asked.values())
        listed = False
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending,
                    timeout=PATIENCE_S if listed else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    break
                listed = listed or any(task.exception() is None for task in done)
        except asyncio.CancelledError:
            for task in asked.values():
                task.cancel()
            raise
        for url, task in asked.items():
            if task in pending:
                self._late[url] = task
                task.add_done_callback(functools.partial(self._came_late, url))
            else:
                self._take(url, task)
        self._tell()
        self._ended = self._rounds
        self._changed()

    def _take(self, url: str, task: "asyncio.Task[list[ServedModel]]") -> None:
        """An answer has come, or none. Raises what no upstream is to blame for."""
        error = task.exception()
        if error is None:
            self._lists[url] = task.result()
        elif isinstance(error, Unavailable):
            log.warning("no model list: %s", error)
        else:
            task.result()

    def _came_late(self, url: str, task: "asyncio.Task[list[ServedModel]]") -> None:
        del self._late[url]
        if not task.cancelled():
            self._take(url, task)
            self._tell()
            self._changed()

    def _tell(self) -> None:
        if not self._lists.keys().isdisjoint(self._urls):
            self._lists = {url: self._lists[url] for url in self._urls if url in self._lists}
        self.served = {model.id: model for listed in self._lists.values() for model in listed}
        now = self._clock.wall_time()
        self.since = {name: self.since.get(name, now) for name in self.served}

    async def fresh(self) -> None:
        """Ask again unless that was done a moment ago.

        Raises:
            Unready: no upstream has ever answered.
        """
        if not self._asked_just_now:
            await self.refresh()
        self._require_any()

    async def look_for(self, found: Callable[[], bool]) -> None:
        """Ask until `found`, or until a round that began after this call has ended.

        So what was loaded before its client named it is never missed; a round that was under way
        at the call may have begun too early.

        Raises:
            Unready: no upstream has ever answered.
        """
        if found():
            return
        enough = self._rounds + 1
        if self._refreshing is None and self._asked_at is not None:
            wait_s = self._asked_at + MIN_REFRESH_S - self._clock.now()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
        while self._ended < enough and not found():
            await self.refresh()
        # That nobody has it is known when the slow ones have said so too.
        late = set(self._late.values())
        while late and not found():
            _, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # what it said is taken in by then
        self._require_any()

    def _require_any(self) -> None:
        if not self.served:
            raise Unready("no upstream has said which models it serves yet")
