"""Sessions and sampling sessions that any process may have made, in the shared store.

What a process has found it keeps; signs of life go to the shared store now and then, and a session
is not taken for lapsed before that was asked.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from asgi_gateway.clock import Clock
from asgi_gateway.errors import GatewayError, NotFound, Unready, Unsupported
from asgi_gateway.ids import SAMPLER, SESSION, Ids
from asgi_gateway.sessions import SamplingSession, Session, Sessions
from asgi_gateway.shared.groups import group_of_session
from asgi_gateway.shared.link import Link
from asgi_gateway.shared.session_keys import Pairs, SessionKeys, fields_of, sampling_fields_of
from asgi_gateway.upstream.catalog import Model

log = logging.getLogger(__name__)

# Signs of life are told this often at most, each session's, and so many times in its timeout.
TELL_EVERY_S: Final = 10.0
TELLS_PER_TIMEOUT: Final = 4
# So long after it was away the shared store may lack what others are about to tell it anew.
DOUBTED_S: Final = 5.0
_MODEL: Final = msgspec.json.Decoder(Model)
_UNKNOWN: Final = "unknown sampling_session_id"


class SharedSessions(SessionKeys):
    def __init__(
        self,
        link: Link,
        ids: Ids,
        sessions: Sessions,
        clock: Clock,
        *,
        retention_s: float,
        prefix: str,
        degrade: bool,
        ended: Callable[[Session], None],
    ) -> None:
        """degrade: sessions are made also where the shared store does not answer, and told to it
        later. ended: called with a session that was finished at another process."""
        super().__init__(link, prefix)
        self._ids = ids
        self._sessions = sessions
        self._clock = clock
        # Beyond our own clocks, for they begin anew with each process.
        self._keep_ms = round(retention_s * 2000)
        self._degrade = degrade
        self._ended = ended
        self._told_at = float("-inf")
        # It did not hear of some.
        self._behind = False
        self._doubted_until = float("-inf")

    def __repr__(self) -> str:
        return f"<SharedSessions of {self._sessions!r}>"

    # --- sessions --------------------------------------------------------------------------------

    async def made(self, session: Session) -> None:
        """Tell of a session that is about to be answered. Raises Unready."""
        key = self._key("e", session.session_id)
        try:
            await self._ask(session.session_id, "HSET", key, *fields_of(session))
            await self._ask(session.session_id, "PEXPIRE", key, self._keep_ms)
            await self._ask(session.caller, *self._listing(session))
        except Unready:
            if not self._degrade:
                raise
            self._behind = True
        self._tell(session, self._clock.now())

    async def find(self, session_id: str, caller: str) -> Session:
        """A session, finished or not, that another process made.

        Raises:
            NotFound: never issued to this caller, or forgotten.
            Unready: the shared store does not answer.
        """
        if not self._ids.may_be_ours(session_id, caller, SESSION):
            raise NotFound("unknown session_id")
        kept = await self._hash(session_id, "e")
        if kept.get(b"ca") != caller.encode():
            raise self._lacking(NotFound("unknown session_id"))
        return self._take(session_id, caller, kept)

    def _take(self, session_id: str, caller: str, kept: Pairs) -> Session:
        try:
            session = self._sessions.read(session_id, caller)
        except NotFound:
            now = self._clock.now()
            self._sessions.restore(session_id, caller, b"fi" in kept, now)
            session = self._sessions.read(session_id, caller)
            if b"dn" in kept:
                session.display_name = kept[b"dn"].decode("utf-8", "replace")
            session.user_metadata = kept.get(b"um")
        return session

    def _listing(self, session: Session) -> tuple[bytes | str | int, ...]:
        wall_ms = round(self._clock.wall_time() * 1000)
        return "ZADD", self._key("u", session.caller), "NX", wall_ms, session.session_id

    async def newest(self, caller: str, limit: int, offset: int) -> list[str]:
        """A caller's sessions, the last created first. Raises Unready."""
        key, last = self._key("u", caller), offset + limit - 1
        while limit > 0:
            listed = [n.decode() for n in await self._ask(caller, "ZREVRANGE", key, offset, last)]
            there = [self._ask(name, "EXISTS", self._key("e", name)) for name in listed]
            known = await asyncio.gather(*there)
            if all(known):
                return listed
            gone = [name for name, is_known in zip(listed, known, strict=True) if not is_known]
            await self._ask(caller, "ZREM", key, *gone)
        return []

    async def finished(self, session: Session) -> list[str]:
        """Tell that a session is finished; returns its sampling sessions, of all processes.

        Raises:
            Unready: the shared store does not answer; the client repeats it.
        """
        key = self._key("e", session.session_id)
        await self._ask(session.session_id, "HSET", key, "fi", "1")
        return await self.samplers(session)

    async def samplers(self, session: Session) -> list[str]:
        """Its sampling sessions, of all processes. Raises Unready."""
        kept = await self._hash(session.session_id, "e")
        return [value.decode() for name, value in kept.items() if name.startswith(b"q")]

    # --- sampling sessions -----------------------------------------------------------------------

    async def made_sampling(self, made: SamplingSession, seq_id: int) -> SamplingSession:
        """Tell of a sampling session; another process may have made the one of its number, which is
        returned then.

        Raises:
            Unsupported: that was for other weights.
            Unready: the shared store does not answer.
        """
        session, identifier = made.session, made.sampling_session_id
        key = self._key("a", identifier)
        field, of_session = f"q{seq_id}", self._key("e", session.session_id)
        try:
            await self._ask(identifier, "HSET", key, *sampling_fields_of(made, seq_id))
            await self._ask(identifier, "PEXPIRE", key, self._keep_ms)
            await self._ask(session.session_id, "HSETNX", of_session, field, identifier)
            first = await self._ask(session.session_id, "HGET", of_session, field)
        except Unready:
            if not self._degrade:
                raise
            self._behind = True
            return made
        if first == identifier.encode():
            return made
        self._sessions.forget_sampling(made, seq_id)
        await self._ask(identifier, "UNLINK", key)
        found = await self.sampler(first.decode(), session.caller)
        if found.model != made.model:
            raise Unsupported(
                f"sampling_session_seq_id {seq_id} of this session was used for another model"
            )
        return found

    async def sampler(self, sampling_session_id: str, caller: str) -> SamplingSession:
        """A sampling session that another process made, alive from now.

        Raises:
            NotFound: never issued to this caller, forgotten, or its session was finished.
            Unready: the shared store does not answer.
        """
        if not self._ids.may_be_ours(sampling_session_id, caller, SAMPLER):
            raise NotFound(_UNKNOWN)
        kept = await self._hash(sampling_session_id, "a")
        if kept.get(b"ca") != caller.encode():
            raise self._lacking(NotFound(_UNKNOWN))
        try:
            session_id, seq_id = kept[b"se"].decode(), int(kept[b"sq"])
            model, clones = _MODEL.decode(kept[b"mo"]), int(kept.get(b"cl", 0))
        except (KeyError, ValueError) as error:
            text = "the shared store's note of %s cannot be read: %r"
            log.warning(text, sampling_session_id, error)
            raise NotFound(_UNKNOWN) from error
        try:
            session = self._sessions.read(session_id, caller)
        except NotFound:
            session = await self.find(session_id, caller)
        if session.finished:
            raise NotFound("the session of this sampling_session_id was finished")
        known = self._sessions.look_at(sampling_session_id)
        if known is None:
            known = self._sessions.restore_sampling(
                sampling_session_id, session_id, seq_id, model, clones
            )
        self._sessions.alive(session, self._clock.now())
        return known

    def _lacking(self, unknown: NotFound) -> GatewayError:
        """What is said of an id of ours that the shared store does not have."""
        if self._clock.now() < self._doubted_until:
            return Unready("the shared store has just come back; again", "store")
        return unknown

    async def join(self, sampling: SamplingSession) -> int:
        """A clone's number, that no other process gives. Raises Unready."""
        identifier = sampling.sampling_session_id
        count = await self._ask(identifier, "HINCRBY", self._key("a", identifier), "cl", 1)
        sampling.clones = int(count)
        return sampling.clones

    # --- life ------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Tell of signs of life since the last time."""
        if self._behind and self._link.up:
            self.tell_everything()
        if now - self._told_at < self.tell_every_s:
            return
        before, self._told_at = self._told_at, now
        for session in self._sessions:
            if session.alive_at > before and not session.finished:
                self._tell(session, now)

    def _tell(self, session: Session, now: float) -> None:
        wall_ms = round((self._clock.wall_time() - (now - session.alive_at)) * 1000)
        identifier = session.session_id
        self._send(identifier, "SET", self._key("t", identifier), wall_ms, "PX", self._keep_ms)
        self._keep(identifier, "e", self._keep_ms, partial(self._tell_anew, session))
        self._send(session.caller, "PEXPIRE", self._key("u", session.caller), self._keep_ms)
        for seq_id, sampling in session.sampling.items():
            lost = partial(self._tell_sampling_anew, seq_id, sampling)
            self._keep(sampling.sampling_session_id, "a", self._keep_ms, lost)

    def _tell_anew(self, session: Session) -> None:
        fields: list[bytes | str] = fields_of(session)
        if session.finished:
            fields += ["fi", "1"]
        key, identifier = self._key("e", session.session_id), session.session_id
        self._send(identifier, "HSET", key, *fields)
        for seq_id, sampling in session.sampling.items():
            self._send(identifier, "HSETNX", key, f"q{seq_id}", sampling.sampling_session_id)
        self._send(identifier, "PEXPIRE", key, self._keep_ms)
        self._send(session.caller, *self._listing(session))

    def _tell_sampling_anew(self, seq_id: int, sampling: SamplingSession) -> None:
        name = sampling.sampling_session_id
        key = self._key("a", name)
        self._send(name, "HSET", key, *sampling_fields_of(sampling, seq_id))
        # Each process knows of some of the numbers given; their sum is above them all.
        self._send(name, "HINCRBY", key, "cl", sampling.clones)
        self._send(name, "PEXPIRE", key, self._keep_ms)

    @property
    def tell_every_s(self) -> float:
        return min(TELL_EVERY_S, self._sessions.timeout_s / TELLS_PER_TIMEOUT)

    def tell_everything(self) -> None:
        """The shared store has lost what it knew, or did not hear of some."""
        self._behind, now = False, self._clock.now()
        for session in self._sessions:
            self._tell_anew(session)
            for seq_id, sampling in session.sampling.items():
                self._tell_sampling_anew(seq_id, sampling)
            self._tell(session, now)

    def look_again(self) -> None:
        """Messages may have been missed: which sessions were finished? And the shared store may be
        another one, with less in it."""
        now = self._clock.now()
        self._doubted_until = now + DOUBTED_S

        def said(session: Session, reply: object) -> None:
            if reply == 1:
                self._ended(session)

        for session in self._sessions:
            if not session.finished:
                identifier = session.session_id
                asked = ("HEXISTS", self._key("e", identifier), "fi")
                self._link.call(group_of_session(identifier), asked, partial(said, session))
                self._tell(session, now)

    def heard_finished(self, session_id: str) -> None:
        session = self._sessions.look_at_session(session_id)
        if session is not None and not session.finished:
            self._ended(session)

    async def silent_s(self, session: Session) -> float:
        """How long no process has heard of a session; 0 where that cannot be said."""
        try:
            told = await self._ask(session.session_id, "GET", self._key("t", session.session_id))
            return max(0.0, self._clock.wall_time() - int(told) / 1000) if told else float("inf")
        except (GatewayError, ValueError):
            return 0.0
