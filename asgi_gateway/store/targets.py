"""Samples by sampling session: the index that makes a submit idempotent, what was lost, and the
completion logs of those who poll in batches."""

from asgi_gateway.asgi import Waker
from asgi_gateway.store.completions import Completion, CompletionLog, Page
from asgi_gateway.store.records import Lost, Record, clone_of
from asgi_gateway.store.states import SETTLED, State


class Target:
    """One sampling session.

    A completion log exists per clone that was ever polled in batches. Clients that poll each sample
    by itself therefore cost no log; a poller's first poll finds everything that settled or was lost
    before it.
    """

    __slots__ = ("by_seq", "logs", "lost", "parked")

    def __init__(self) -> None:
        self.by_seq: dict[int, Record] = {}
        self.lost: dict[int, Lost] = {}
        self.logs: dict[int, CompletionLog] = {}
        self.parked: dict[int, list[Waker]] = {}

    def __repr__(self) -> str:
        return f"<Target {len(self.by_seq)} held, {len(self.lost)} lost, {len(self.logs)} logs>"

    @property
    def empty(self) -> bool:
        """Whether nothing is lost by forgetting it; a log's positions would be."""
        return not (self.by_seq or self.lost or self.logs or self.parked)

    def log(self, clone: int, base: int) -> CompletionLog:
        """The clone's log, made at its first poll with all that is known by then."""
        log = self.logs.get(clone)
        if log is None:
            log = self.logs[clone] = CompletionLog(base)
            for lost in self.lost.values():
                if clone_of(lost.seq_id) == clone:
                    log.append(Completion(lost.request_id, None))
            settled = [
                record
                for record in self.by_seq.values()
                if clone_of(record.seq_id) == clone and record.state in SETTLED
            ]
            for record in sorted(settled, key=_settled_at):
                log.append(_completion(record))
        return log


class Targets:
    """All sampling sessions that have samples, notes of lost ones, or pollers."""

    def __init__(self, cursor_base: int) -> None:
        """cursor_base: above every cursor that an earlier process gave out."""
        self._cursor_base = cursor_base
        self._targets: dict[str, Target] = {}
        self._lost: dict[str, Lost] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def __contains__(self, sampling_session_id: str) -> bool:
        return sampling_session_id in self._targets

    @property
    def lost(self) -> int:
        return len(self._lost)

    @property
    def parked(self) -> int:
        """Batched polls held now."""
        return sum(len(w) for t in self._targets.values() for w in t.parked.values())

    # --- the index -------------------------------------------------------------------------------

    def known(self, sampling_session_id: str, seq_id: int) -> Record | Lost | None:
        target = self._targets.get(sampling_session_id)
        if target is None:
            return None
        return target.by_seq.get(seq_id) or target.lost.get(seq_id)

    def add(self, record: Record) -> None:
        """Index an accepted record; it takes the place of the note of its loss."""
        target = self._target(record.sampling_session_id)
        target.by_seq[record.seq_id] = record
        lost = target.lost.pop(record.seq_id, None)
        if lost is not None:
            del self._lost[lost.request_id]

    def remove(self, record: Record) -> None:
        target = self._targets[record.sampling_session_id]
        del target.by_seq[record.seq_id]
        self._drop_if_empty(record.sampling_session_id, target)

    def records(self, sampling_session_id: str) -> list[Record]:
        target = self._targets.get(sampling_session_id)
        return list(target.by_seq.values()) if target is not None else []

    def forget(self, sampling_session_id: str) -> None:
        """Drop what is left of a sampling session; its records must be evicted."""
        target = self._targets.pop(sampling_session_id, None)
        if target is not None:
            for lost in target.lost.values():
                del self._lost[lost.request_id]

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

    def report(self, record: Record) -> list[Waker]:
        """Write a record that settled or was lost into its log; returns the pollers to wake."""
        target = self._targets.get(record.sampling_session_id)
        if target is None:
            return []
        clone = clone_of(record.seq_id)
        log = target.logs.get(clone)
        if log is not None:
            log.append(_completion(record))
        return list(target.parked.get(clone, ()))

    def page(self, sampling_session_id: str, clone: int, prev_cursor: int, limit: int) -> Page:
        """What a poller has not seen yet; what it has is dropped from its log."""
        log = self._target(sampling_session_id).log(clone, self._cursor_base)
        log.seen(prev_cursor)
        return log.page(limit)

    def park(self, sampling_session_id: str, clone: int, waker: Waker) -> None:
        self._target(sampling_session_id).parked.setdefault(clone, []).append(waker)

    def unpark(self, sampling_session_id: str, clone: int, waker: Waker) -> None:
        target = self._targets.get(sampling_session_id)
        if target is not None and waker in target.parked.get(clone, ()):
            target.parked[clone].remove(waker)
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


def _completion(record: Record) -> Completion:
    """Finished with a size, or failed: the client then fetches the error, or meets the 410."""
    finished = record.state is State.SUCCEEDED and record.result is not None
    return Completion(record.request_id, len(record.result or b"") if finished else None)


def _settled_at(record: Record) -> float:
    return record.settled_at
