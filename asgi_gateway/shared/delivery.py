"""Polls where a store is shared: completion logs are there, whoever ran the samples."""

from collections.abc import Sequence
from typing import Final

from asgi_gateway.delivery import COMPLETIONS_PER_PAGE, Delivery
from asgi_gateway.peer import Peer
from asgi_gateway.shared.errors import SharedStoreError
from asgi_gateway.shared.outcomes import Completions, CorruptReply, Entry
from asgi_gateway.shared.verbs import Verbs
from asgi_gateway.store.completions import Page

_NOTHING: Final[Sequence[Entry]] = ()


class SharedDelivery(Delivery):
    verbs: Verbs

    async def completions(
        self,
        sampling_session_id: str,
        clone: int,
        prev_cursor: int,
        peer: Peer,
        timeout_s: float | None,
    ) -> Page:
        """As in memory. While the shared store does not answer a poll is held and finds nothing."""
        hold_s = self._hold_s if timeout_s is None else min(timeout_s, self._hold_s)
        targets = self._store.targets
        # Parked before the look: what settles after it wakes.
        waker = self._held(hold_s) if hold_s > 0 and not self.stopping else None
        try:
            if waker is not None:
                targets.park(sampling_session_id, clone, waker)
            page = await self._page(sampling_session_id, clone, prev_cursor, waker is not None)
            if page.completions or waker is None or self.stopping:
                return page
            peer.watch(waker)
            await waker.future
        finally:
            if waker is not None:
                self._holds.stop(waker)
                self._gathering.pop(waker, None)
                targets.unpark(sampling_session_id, clone, waker)
        return await self._page(sampling_session_id, clone, prev_cursor, False)

    async def _page(
        self, sampling_session_id: str, clone: int, prev_cursor: int, watch: bool
    ) -> Page:
        command = self.verbs.page(
            sampling_session_id, clone, prev_cursor, COMPLETIONS_PER_PAGE, None, watch=watch
        )
        try:
            found: Completions = await self.verbs.ask(command)
        except (SharedStoreError, CorruptReply):
            return Page(_NOTHING, prev_cursor)
        return Page(found.entries, found.cursor)
