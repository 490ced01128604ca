"""Keeps sessions and open samples in the journal, and brings them back after a restart.

A sample that was open when a process died is noted as lost in the next one: its poller is told
`failed`, its id answers 410, and the SDK submits it again by itself.
"""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from asgi_gateway.ledger import Ledger
from asgi_gateway.metrics import Metrics
from asgi_gateway.sessions import Sessions
from asgi_gateway.state.events import (
    Accepted,
    Booted,
    Closed,
    Event,
    Joined,
    SamplingMade,
    SessionFinished,
    SessionForgotten,
    SessionMade,
)
from asgi_gateway.state.key import load_key
from asgi_gateway.state.opening import open_journal
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Lost, Record
from asgi_gateway.upstream.catalog import Model

log = logging.getLogger(__name__)

SYNC_EVERY_S: Final = 1.0
# About 2 ms a tick while a compaction is under way.
COPIED_PER_TICK: Final = 2048
# Cursors of a process start at its boot second times 2^21, so they fit into 2^53 until 2106; where
# the wall clock was set back they go on from the last process instead.
CURSORS_PER_SECOND_BITS: Final = 21
CURSORS_PER_BOOT: Final = 1 << 32


class Keeper(Ledger):
    """Owns a state directory from construction to `close`."""

    def __init__(self, directory: Path, *, fsync: bool) -> None:
        """fsync: whether to sync every second, so that a power cut takes a second at most.

        Raises:
            StateError: the directory cannot be used; the text says why.
        """
        self._journal, self._recovered = open_journal(directory)
        try:
            self.key = load_key(directory)
        except BaseException:
            self._journal.close()
            raise
        self._fsync = fsync
        self._sessions: Sessions | None = None
        self._store: MemoryStore | None = None
        self._booted = Booted("", 0)
        self._synced_at = 0.0
        self._sync: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Keeper {self._journal!r}>"

    @property
    def healthy(self) -> bool:
        """Whether what is kept now would survive."""
        return self._journal.healthy

    @property
    def nbytes(self) -> int:
        return self._journal.nbytes

    def add_to(self, metrics: Metrics) -> None:
        metrics.gauge(
            "journal_healthy",
            "1 while what is appended to the journal would survive a restart.",
            lambda: int(self.healthy),
        )
        metrics.gauge("journal_bytes", "Size of the journal.", lambda: self.nbytes)
        metrics.counter(
            "store_errors_total",
            "Writes, syncs and copies of the journal that failed.",
            lambda: self._journal.write_failures,
        )

    def begin(self, epoch: str, wall_time: float) -> int:
        """Note the start of this process; returns the base of its completion cursors."""
        by_clock = int(wall_time) << CURSORS_PER_SECOND_BITS
        base = max(by_clock, self._recovered.cursor_base + CURSORS_PER_BOOT)
        self._booted = Booted(epoch, base)
        self._journal.append(self._booted)
        self._journal.flush()
        return base

    def restore(self, sessions: Sessions, store: MemoryStore, now: float) -> None:
        """Fill both with what earlier processes left."""
        recovered = self._recovered
        self._sessions, self._store = sessions, store
        for made in recovered.sessions.values():
            finished = made.session_id in recovered.finished
            sessions.restore(made.session_id, made.caller, finished, now)
        for sampler in recovered.sampling.values():
            sessions.restore_sampling(
                sampler.sampling_session_id,
                sampler.session_id,
                sampler.seq_id,
                Model(
                    upstream_name=sampler.upstream_name,
                    base_model=sampler.base_model,
                    cache_salt=sampler.cache_salt,
                    model_path=sampler.model_path,
                ),
                recovered.clones.get(sampler.sampling_session_id, 0),
            )
        for sample in recovered.samples:
            store.targets.remember_lost(
                Lost(
                    sample.request_id,
                    sample.caller,
                    sample.sampling_session_id,
                    sample.seq_id,
                    sample.digest,
                )
            )
        if recovered.sessions:
            log.warning(
                "recovered %d sessions and %d open samples, which their clients will submit again",
                len(recovered.sessions),
                len(recovered.samples),
            )
        # Not needed again, and as large as the samples were many.
        del self._recovered

    # --- the ledger ------------------------------------------------------------------------------

    def accepted(self, record: Record) -> None:
        self._now(
            Accepted(
                record.request_id,
                record.caller,
                record.sampling_session_id,
                record.seq_id,
                record.digest,
            )
        )

    def closed(self, request_id: str) -> None:
        # Not flushed: one that is missing makes a client hear of an id that it knows already.
        self._journal.append(Closed(request_id))

    def session_made(self, session_id: str, caller: str) -> None:
        self._now(SessionMade(session_id, caller))

    def session_finished(self, session_id: str) -> None:
        self._now(SessionFinished(session_id))

    def session_forgotten(self, session_id: str) -> None:
        self._journal.append(SessionForgotten(session_id))

    def sampling_made(
        self,
        sampling_session_id: str,
        session_id: str,
        seq_id: int,
        *,
        upstream_name: str,
        base_model: str,
        cache_salt: str,
        model_path: str | None,
    ) -> None:
        self._now(
            SamplingMade(
                sampling_session_id,
                session_id,
                seq_id,
                upstream_name,
                base_model,
                cache_salt,
                model_path,
            )
        )

    def joined(self, sampling_session_id: str, counter: int) -> None:
        self._now(Joined(sampling_session_id, counter))

    def _now(self, event: Event) -> None:
        """Write before the client learns of it: what it was told must be known after a kill."""
        self._journal.append(event)
        self._journal.flush()

    # --- upkeep ----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Called by the ticker: flush, compact a little, sync in a thread where that is wanted."""
        self._journal.flush()
        self._journal.compact_some(self._live, COPIED_PER_TICK)
        if now - self._synced_at >= SYNC_EVERY_S and self._sync is None:
            self._synced_at = now
            self._journal.retry()
            if self._fsync or self._journal.sync_wanted:
                self._sync = asyncio.create_task(asyncio.to_thread(self._journal.sync))
                self._sync.add_done_callback(self._synced)

    def _synced(self, _: object) -> None:
        self._sync = None

    def close(self) -> None:
        self._journal.close()

    def _live(self) -> Iterator[Event]:
        """All that is known, lazily: what is gone when its turn comes is left out."""
        sessions, store = self._sessions, self._store
        assert sessions is not None
        assert store is not None
        kept = list(sessions)
        records, notes = store.records(), store.targets.open_notes()
        yield self._booted
        for session in kept:
            yield SessionMade(session.session_id, session.caller)
            if session.finished:
                yield SessionFinished(session.session_id)
            for seq_id, sampler in list(session.sampling.items()):
                model = sampler.model
                yield SamplingMade(
                    sampler.sampling_session_id,
                    session.session_id,
                    seq_id,
                    model.upstream_name,
                    model.base_model,
                    model.cache_salt,
                    model.model_path,
                )
                if sampler.clones:
                    yield Joined(sampler.sampling_session_id, sampler.clones)
        open_samples: list[Record | Lost] = [*notes, *records]
        for item in open_samples:
            if store.is_open(item.request_id):
                yield Accepted(
                    item.request_id,
                    item.caller,
                    item.sampling_session_id,
                    item.seq_id,
                    item.digest,
                )
