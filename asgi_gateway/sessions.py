"""Sessions and the sampling sessions below them: who samples, from which weights, and who is alive.

A session of the SDK is one ServiceClient. Any request of it is a sign of life; after `timeout_s`
without one its upstream work ends, while its identity stays for `retention_s` and the next request
revives it.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from asgi_gateway.errors import Gone, NotFound, Overloaded, Unsupported
from asgi_gateway.ids import SAMPLER, SESSION, Ids
from asgi_gateway.ledger import Ledger
from asgi_gateway.settings import Settings
from asgi_gateway.store.expiry import Deadlines
from asgi_gateway.upstream.catalog import Model

# Signs of life that come closer together count as one; time is looked at no more often either.
RESOLUTION_S: Final = 0.1
# One is made per save of weights; some 300 bytes each.
MAX_SAMPLERS: Final = 65_536


class SamplingSession(msgspec.Struct, eq=False):
    """One SamplingClient: an id without colons, its session, the weights it samples from."""

    sampling_session_id: str
    session: "Session"
    model: Model
    # Clones of the client that were given a number; the original is 0.
    clones: int = 0


class Session(msgspec.Struct, eq=False):
    """One ServiceClient of a caller."""

    session_id: str
    caller: str
    finished: bool = False
    alive_at: float = float("-inf")
    # By the client's own sequence number, which makes creating one idempotent.
    sampling: dict[int, SamplingSession] = {}
    # What its client says about it, for those who list sessions; the metadata as JSON.
    display_name: str | None = None
    user_metadata: bytes | None = None


class Swept(msgspec.Struct, frozen=True):
    """Sampling sessions whose work ends: their session showed no life, or is forgotten."""

    lapsed: list[SamplingSession]
    forgotten: list[SamplingSession]


class Sessions:
    def __init__(
        self,
        timeout_s: float,
        retention_s: float,
        ids: Ids,
        ledger: Ledger,
        max_per_caller: int = 65_536,
    ) -> None:
        self._ids = ids
        self._ledger = ledger
        self._sessions: dict[str, Session] = {}
        self._sampling: dict[str, SamplingSession] = {}
        self._max_per_caller = max_per_caller
        self._of_caller: dict[str, int] = {}
        self._alive: Deadlines[Session] = Deadlines(timeout_s)
        self._kept: Deadlines[Session] = Deadlines(retention_s)

    def reconfigure(self, settings: Settings) -> None:
        """Other times and another limit, for the sessions that are known too."""
        self._alive.lifetime_s = settings.session.timeout_s
        self._kept.lifetime_s = settings.session.retention_s
        self._max_per_caller = settings.limits.sessions_per_caller

    @property
    def timeout_s(self) -> float:
        """So long without a sign of life, and a session's work ends."""
        return self._alive.lifetime_s

    def __len__(self) -> int:
        return len(self._sessions)

    def __repr__(self) -> str:
        return f"<Sessions {len(self._sessions)}, {len(self._sampling)} sampling>"

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    # --- sessions --------------------------------------------------------------------------------

    def create(
        self,
        caller: str,
        now: float,
        session_id: str | None = None,
        *,
        display_name: str | None = None,
        user_metadata: bytes | None = None,
    ) -> Session:
        """A new session; `session_id` where somebody else, a trainer, has named it.

        One that is known by that name is the same: several requests may hear of it at once.

        Raises:
            Overloaded: the caller has too many that are not forgotten yet.
            NotFound: somebody named it what a session of another caller is called.
        """
        known = self._sessions.get(session_id or "")
        if known is not None:
            if known.caller != caller:
                raise NotFound("unknown session_id")
            return known
        if self._of_caller.get(caller, 0) >= self._max_per_caller:
            raise Overloaded(
                f"{self._max_per_caller} sessions of this caller are kept, the limit"
                " (limits.sessions_per_caller)"
            )
        session_id = session_id or self._ids.issue(caller, SESSION)
        made = Session(session_id, caller, display_name=display_name, user_metadata=user_metadata)
        session = self._add(made, now)
        self._ledger.session_made(session.session_id, caller)
        return session

    def restore(self, session_id: str, caller: str, finished: bool, now: float) -> None:
        """Take in a session of an earlier process; its clocks start anew."""
        session = self._add(Session(session_id, caller, finished), now)
        if finished:
            self._alive.stop(session)

    def _add(self, session: Session, now: float) -> Session:
        self._sessions[session.session_id] = session
        self._of_caller[session.caller] = self._of_caller.get(session.caller, 0) + 1
        self.alive(session, now)
        return session

    def alive(self, session: Session, now: float) -> None:
        """A sign of life: both clocks start anew."""
        if now - session.alive_at < RESOLUTION_S and session in self._alive:
            return
        session.alive_at = now
        self._alive.start(session, now)
        self._kept.start(session, now)

    def sign_of_life(self, sampling_session_id: str, now: float) -> None:
        """The same from a request that names a sampling session; nothing where none is known."""
        sampling = self._sampling.get(sampling_session_id)
        if sampling is not None and not sampling.session.finished:
            self.alive(sampling.session, now)

    def find(self, session_id: str, caller: str) -> Session:
        """A session that was not finished.

        Raises:
            NotFound: never issued to this caller, or forgotten.
            Gone: finished; the SDK then stops its heartbeat.
        """
        session = self.read(session_id, caller)
        if session.finished:
            raise Gone("this session was finished")
        return session

    def read(self, session_id: str, caller: str) -> Session:
        """A session, finished or not; looking at one is no sign of its life.

        Raises:
            NotFound: never issued to this caller, or forgotten.
        """
        session = self._sessions.get(session_id)
        if session is None or session.caller != caller:
            raise NotFound("unknown session_id")
        return session

    def newest(self, caller: str) -> Iterator[Session]:
        """The caller's sessions, the last created first."""
        return (
            session for session in reversed(self._sessions.values()) if session.caller == caller
        )

    def finish(self, session: Session) -> list[SamplingSession]:
        """Mark as finished; returns the sampling sessions whose work ends."""
        session.finished = True
        self._alive.stop(session)
        self._ledger.session_finished(session.session_id)
        return list(session.sampling.values())

    # --- sampling sessions -----------------------------------------------------------------------

    def create_sampling(
        self, session: Session, seq_id: int, model: Model, sampling_session_id: str | None = None
    ) -> SamplingSession:
        """The session's sampling session of this number; made at its first call.

        Raises:
            Unsupported: the number was used for other weights, or the session has too many.
        """
        made = session.sampling.get(seq_id)
        if made is not None:
            if made.model != model:
                raise Unsupported(
                    f"sampling_session_seq_id {seq_id} of this session was used for another model"
                )
            return made
        if len(session.sampling) >= MAX_SAMPLERS:
            raise Unsupported(
                f"this session has {MAX_SAMPLERS} sampling sessions, the limit; create another"
            )
        identifier = sampling_session_id or self._ids.issue(session.caller, SAMPLER)
        made = self.restore_sampling(identifier, session.session_id, seq_id, model, 0)
        self._ledger.sampling_made(
            identifier,
            session.session_id,
            seq_id,
            upstream_name=model.upstream_name,
            base_model=model.base_model,
            cache_salt=model.cache_salt,
            model_path=model.model_path,
        )
        return made

    def restore_sampling(
        self, sampling_session_id: str, session_id: str, seq_id: int, model: Model, clones: int
    ) -> SamplingSession:
        """Take in a sampling session of a session that is known."""
        session = self._sessions[session_id]
        made = SamplingSession(sampling_session_id, session, model, clones)
        session.sampling[seq_id] = self._sampling[sampling_session_id] = made
        return made

    def forget_sampling(self, made: SamplingSession, seq_id: int) -> None:
        """One that another process was first to make."""
        made.session.sampling.pop(seq_id, None)
        self._sampling.pop(made.sampling_session_id, None)

    def look_at_session(self, session_id: str) -> Session | None:
        """A session, whoever's; looking is no sign of its life."""
        return self._sessions.get(session_id)

    def find_sampling(self, sampling_session_id: str, caller: str) -> SamplingSession:
        """Raises NotFound where it was never issued to this caller, or its session was finished."""
        sampling = self._sampling.get(sampling_session_id)
        if sampling is None or sampling.session.caller != caller:
            raise NotFound("unknown sampling_session_id")
        if sampling.session.finished:
            raise NotFound("the session of this sampling_session_id was finished")
        return sampling

    def look_at(self, sampling_session_id: str) -> SamplingSession | None:
        """A sampling session, whoever's; looking is no sign of its life."""
        return self._sampling.get(sampling_session_id)

    def upstream_name(self, sampling_session_id: str) -> str | None:
        """What the upstream calls the weights of a sampling session that is known."""
        sampling = self._sampling.get(sampling_session_id)
        return sampling.model.upstream_name if sampling is not None else None

    def is_anothers(self, identifier: str, caller: str) -> bool:
        """Whether a session or sampling session of this id belongs to another caller."""
        sampling = self._sampling.get(identifier)
        session = self._sessions.get(identifier) if sampling is None else sampling.session
        return session is not None and session.caller != caller

    def may_have_issued(self, sampling_session_id: str, caller: str) -> bool:
        """Whether a sampling session that cannot be found was ours: finished, forgotten, or of an
        earlier process."""
        sampling = self._sampling.get(sampling_session_id)
        if sampling is not None:
            return sampling.session.caller == caller
        return self._ids.may_be_ours(sampling_session_id, caller, SAMPLER)

    def join(self, sampling: SamplingSession) -> int:
        """A clone number above 0 that no other clone of this sampling session got here."""
        sampling.clones += 1
        self._ledger.joined(sampling.sampling_session_id, sampling.clones)
        return sampling.clones

    # --- time ------------------------------------------------------------------------------------

    def sweep(self, now: float, budget: int) -> Swept:
        """Name what has lapsed, and forget the sessions whose retention is over."""
        lapsed = self._alive.due(now, budget)
        forgotten = []
        for session in self._kept.due(now, budget):
            if session in self._alive:  # a retention below the timeout, or a sweep that lags
                self._alive.stop(session)
                lapsed.append(session)
            del self._sessions[session.session_id]
            self._of_caller[session.caller] -= 1
            self._ledger.session_forgotten(session.session_id)
            for sampling in session.sampling.values():
                del self._sampling[sampling.sampling_session_id]
                forgotten.append(sampling)
        return Swept(
            [sampling for session in lapsed for sampling in session.sampling.values()], forgotten
        )
