"""Samples by sampling session: the index that makes a submit idempotent, what was lost, and the
completion logs of those who poll in batches."""

from collections.abc import Iterable
from typing import Final

import msgspec

from asgi_gateway.errors import Unsupported
from asgi_gateway.peer import Waker
from asgi_gateway.store.completions import CompletionLog, Page
from asgi_gateway.store.records import SEQ_IDS_PER_CLONE, Lost, Record, clone_of
from asgi_gateway.store.states import SETTLED

# Bounds the turn of a clone's first polls: about 1 ms.
LOOKED_AT_PER_PAGE: Final = 2048
# Clones of one sampling session that poll in batches: their numbers are their own choice.
MAX_CLONES: Final = 4096


class Target:
    """One sampling session.

    A completion log exists per clone that was ever polled in batches. Clients that poll each sample
    by itself therefore cost no log; a poller's first polls find everything that settled or was lost
    before them.
    """

    __slots__ = ("by_seq", "lost", "parked", "pollers")

    def __init__(self) -> None:
        self.by_seq: dict[int, Record] = {}
        self.lost: dict[int, Lost] = {}
        self.pollers: dict[int, Poller] = {}
        self.parked: dict[int, list[Waker]] = {}

    def __repr__(self) -> str:
        return f"<Target {len(self.by_seq)} held, {len(self.lost)} lost, {len(self.pollers)} logs>"

    @property
    def empty(self) -> bool:
        """Whether nothing is lost by forgetting it; a log's positions would be."""
        return not (self.by_seq or self.lost or self.pollers or self.parked)

    def poller(self, clone: int, base: int) -> "Poller":
        """The clone's log, made at its first poll. Raises Unsupported where there are too many."""
        poller = self.pollers.get(clone)
        if poller is None:
            if len(self.pollers) >= MAX_CLONES:
                raise Unsupported(
                    f"target.cloned_sampler_id: {MAX_CLONES} clones of this sampling session were"
                    " polled, the limit"
                )
            earlier: list[Record | Lost] = [*self.lost.values(), *self.by_seq.values()]
            earlier.reverse()  # taken from its end, the first accepted first
            poller = self.pollers[clone] = Poller(CompletionLog(base), earlier)
        return poller

    def look_back(self, clone: int, poller: "Poller") -> None:
        """List some more of what settled or was lost before a clone's first poll."""
        earlier = poller.earlier
        for _ in range(min(LOOKED_AT_PER_PAGE, len(earlier))):
            entry = earlier.pop()
            if entry.seq_id // SEQ_IDS_PER_CLONE != clone:
                continue
            if isinstance(entry, Lost):
                if self.lost.get(entry.seq_id) is entry:
                    poller.log.append(entry)
            elif entry.state in SETTLED and entry not in poller.listed:
                poller.log.append(entry)
        if not poller.earlier:
            poller.listed.clear()


class Poller(msgspec.Struct, eq=False):
    """The log of one clone.

    earlier: what was there at its first poll and was not looked at yet. 131,072 samples would hold
        the loop for 40 ms.
    listed: records that were written into the log since, while there is such an `earlier`.
    """

    log: CompletionLog[Record | Lost]
    earlier: list[Record | Lost]
    listed: set[Record] = set()

    def add(self, record: Record) -> None:
        self.log.append(record)
        if self.earlier:
            self.listed.add(record)


class Targets:
    """All sampling sessions that have samples, notes of lost ones, or pollers."""

    def __init__(self, cursor_base: int) -> None:
        """cursor_base: above every cursor that an earlier process gave out."""
        self._cursor_base = cursor_base
        self._targets: dict[str, Target] = {}
        self._lost: dict[str, Lost] = {}
        # Batched polls held now.
        self.parked = 0

    def __len__(self) -> int:
        return len(self._targets)

    def __contains__(self, sampling_session_id: str) -> bool:
        return sampling_session_id in self._targets

    @property
    def lost(self) -> int:
        return len(self._lost)

    def sizes(self) -> Iterable[tuple[str, int]]:
        """Sampling sessions and how many samples are held for each."""
        return ((name, len(target.by_seq)) for name, target in self._targets.items())

    # --- the index -------------------------------------------------------------------------------

    def known(self, sampling_session_id: str, seq_id: int) -> Record | Lost | None:
        target = self._targets.get(sampling_session_id)
        if target is None:
            return None
        return target.by_seq.get(seq_id) or target.lost.get(seq_id)

    def add(self, record: Record) -> None:
        """Index an accepted record; it takes the place of the note of its loss."""
        session_id = record.sampling_session_id
        target = self._targets.get(session_id) or self._target(session_id)
        target.by_seq[record.seq_id] = record
        if target.lost:
            lost = target.lost.pop(record.seq_id, None)
            if lost is not None:
                del self._lost[lost.request_id]

    def remove(self, record: Record) -> None:
        target = self._targets[record.sampling_session_id]
        del target.by_seq[record.seq_id]
        if not target.by_seq:
            self._drop_if_empty(record.sampling_session_id, target)

    def records(self, sampling_session_id: str) -> list[Record]:
        target = self._targets.get(sampling_session_id)
        return list(target.by_seq.values()) if target is not None else []

    def forget(self, sampling_session_id: str) -> None:
        """Drop what is known of a sampling session besides its records."""
        target = self._targets.get(sampling_session_id)
        if target is None:
            return
        for lost in target.lost.values():
            del self._lost[lost.request_id]
        if target.by_seq:  # accepted since: a trainer may name a session again
            target.lost, target.pollers = {}, {}
        else:
            self.parked -= sum(len(wakers) for wakers in target.parked.values())
            del self._targets[sampling_session_id]

    def shrink(self) -> None:
        """Give back the room of dicts that were large."""
        self._lost = dict(self._lost)
        for target in self._targets.values():
            target.by_seq = dict(target.by_seq)
            target.lost = dict(target.lost)

    # --- lost samples ----------------------------------------------------------------------------

    def remember_lost(self, lost: Lost) -> None:
        """Note a sample that is gone and whose client must be told."""
        self._lost[lost.request_id] = lost
        self._target(lost.sampling_session_id).lost[lost.seq_id] = lost

    def told_lost(self, request_id: str, caller: str) -> bool:
        """Whether an id is noted as lost for this caller; the note is dropped, it was told."""
        lost = self._lost.get(request_id)
        if lost is None or lost.caller != caller:
            return False
        del self._lost[request_id]
        target = self._targets[lost.sampling_session_id]
        del target.lost[lost.seq_id]
        self._drop_if_empty(lost.sampling_session_id, target)
        return True

    def is_lost(self, request_id: str) -> bool:
        return request_id in self._lost

    def open_notes(self) -> list[Lost]:
        return list(self._lost.values())

    # --- batched polls ---------------------------------------------------------------------------

    def report(self, record: Record) -> Iterable[Waker]:
        """Write a record that settled or was lost into its log; names the pollers to wake.

        To be walked before anything is parked or unparked.
        """
        target = self._targets.get(record.sampling_session_id)
        if target is None or not (target.pollers or target.parked):
            return ()
        clone = clone_of(record.seq_id)
        poller = target.pollers.get(clone)
        if poller is not None:
            poller.add(record)
        return target.parked.get(clone, ())

    def page(self, sampling_session_id: str, clone: int, prev_cursor: int, limit: int) -> Page:
        """What a poller has not seen yet; what it has is dropped from its log."""
        target = self._target(sampling_session_id)
        poller = target.poller(clone, self._cursor_base)
        poller.log.seen(prev_cursor)
        if poller.earlier:
            target.look_back(clone, poller)
        entries, cursor = poller.log.oldest(limit)
        return Page(entries, cursor, not entries and bool(poller.earlier))

    def park(self, sampling_session_id: str, clone: int, waker: Waker) -> None:
        self._target(sampling_session_id).parked.setdefault(clone, []).append(waker)
        self.parked += 1

    def parked_for(self, sampling_session_id: str, clone: int) -> Iterable[Waker]:
        """To be walked before anything is parked or unparked."""
        target = self._targets.get(sampling_session_id)
        return target.parked.get(clone, ()) if target is not None else ()

    def all_parked(self) -> Iterable[Waker]:
        """The same of everyone."""
        for target in self._targets.values():
            for wakers in target.parked.values():
                yield from wakers

    def unpark(self, sampling_session_id: str, clone: int, waker: Waker) -> None:
        target = self._targets.get(sampling_session_id)
        if target is not None and waker in target.parked.get(clone, ()):
            target.parked[clone].remove(waker)
            self.parked -= 1
            if not target.parked[clone]:
                del target.parked[clone]

    # --- inside ----------------------------------------------------------------------------------

    def _target(self, sampling_session_id: str) -> Target:
        target = self._targets.get(sampling_session_id)
        if target is None:
            target = self._targets[sampling_session_id] = Target()
        return target

    def _drop_if_empty(self, sampling_session_id: str, target: Target) -> None:
        if target.empty:
            del self._targets[sampling_session_id]
