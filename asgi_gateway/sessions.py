"""Sessions and the sampling sessions below them: who samples, from which weights, and who is alive.

A session of the SDK is one ServiceClient. Any request of it is a sign of life; after `timeout_s`
without one its upstream work ends, while its identity stays for `retention_s` and the next request
revives it.
"""

import secrets

import msgspec

from asgi_gateway.errors import Gone, NotFound, Unsupported
from asgi_gateway.store.expiry import Deadlines
from asgi_gateway.upstream.catalog import Model


class SamplingSession(msgspec.Struct, eq=False):
    """One SamplingClient: an id without colons, its session, the weights it samples from."""

    sampling_session_id: str
    session: "Session"
    model: Model


class Session(msgspec.Struct, eq=False):
    """One ServiceClient of a caller."""

    session_id: str
    caller: str
    finished: bool = False
    # By the client's own sequence number, which makes creating one idempotent.
    sampling: dict[int, SamplingSession] = {}


class Swept(msgspec.Struct, frozen=True):
    """Sampling sessions whose work ends because nobody showed a sign of life."""

    lapsed: list[SamplingSession]


class Sessions:
    def __init__(self, timeout_s: float, retention_s: float) -> None:
        self._sessions: dict[str, Session] = {}
        self._sampling: dict[str, SamplingSession] = {}
        self._alive: Deadlines[Session] = Deadlines(timeout_s)
        self._kept: Deadlines[Session] = Deadlines(retention_s)

    def __len__(self) -> int:
        return len(self._sessions)

    def __repr__(self) -> str:
        return f"<Sessions {len(self._sessions)}, {len(self._sampling)} sampling>"

    def create(self, caller: str, now: float) -> Session:
        session = Session(f"session-{secrets.token_hex(12)}", caller)
        self._sessions[session.session_id] = session
        self.alive(session, now)
        return session

    def alive(self, session: Session, now: float) -> None:
        """A sign of life: both clocks start anew."""
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
        session = self._sessions.get(session_id)
        if session is None or session.caller != caller:
            raise NotFound("unknown session_id")
        if session.finished:
            raise Gone("this session was finished")
        return session

    def create_sampling(self, session: Session, seq_id: int, model: Model) -> SamplingSession:
        """The session's sampling session of this number; made at its first call.

        Raises:
            Unsupported: the number was used for other weights.
        """
        made = session.sampling.get(seq_id)
        if made is None:
            made = SamplingSession(f"sampler-{secrets.token_hex(12)}", session, model)
            session.sampling[seq_id] = made
            self._sampling[made.sampling_session_id] = made
        elif made.model != model:
            raise Unsupported(
                f"sampling_session_seq_id {seq_id} of this session was used for another model"
            )
        return made

    def find_sampling(self, sampling_session_id: str, caller: str) -> SamplingSession:
        """Raises NotFound where it was never issued to this caller, or its session was finished."""
        sampling = self._sampling.get(sampling_session_id)
        if sampling is None or sampling.session.caller != caller:
            raise NotFound("unknown sampling_session_id")
        if sampling.session.finished:
            raise NotFound("the session of this sampling_session_id was finished")
        return sampling

    def finish(self, session: Session) -> list[SamplingSession]:
        """Mark as finished; returns the sampling sessions whose work ends."""
        session.finished = True
        self._alive.stop(session)
        return list(session.sampling.values())

    def sweep(self, now: float, budget: int) -> Swept:
        """Name what has lapsed, and forget the sessions whose retention is over."""
        lapsed = self._alive.due(now, budget)
        for session in self._kept.due(now, budget):
            if session in self._alive:  # a retention below the timeout, or a sweep that lags
                self._alive.stop(session)
                lapsed.append(session)
            del self._sessions[session.session_id]
            for sampling in session.sampling.values():
                del self._sampling[sampling.sampling_session_id]
        return Swept([sampling for session in lapsed for sampling in session.sampling.values()])
