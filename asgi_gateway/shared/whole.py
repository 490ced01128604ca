"""Everything of a gateway that shares its store, put together."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from asgi_gateway.addresses import shown_url
from asgi_gateway.admission import Admission
from asgi_gateway.clock import Clock
from asgi_gateway.delivery import Delivery
from asgi_gateway.errors import GatewayError, NotFound, Unready
from asgi_gateway.ids import Ids
from asgi_gateway.sampling import Sampling
from asgi_gateway.sessions import SamplingSession, Session, Sessions, Swept
from asgi_gateway.settings import PollSettings, Settings, SettingsError
from asgi_gateway.shared.adoption import adopted
from asgi_gateway.shared.claims import Claims
from asgi_gateway.shared.delivery import SharedDelivery
from asgi_gateway.shared.elsewhere import Elsewhere
from asgi_gateway.shared.errors import SharedStoreError
from asgi_gateway.shared.groups import group_of_session
from asgi_gateway.shared.link import Link
from asgi_gateway.shared.member import Member
from asgi_gateway.shared.outcomes import Adopted
from asgi_gateway.shared.samples import Lifetimes
from asgi_gateway.shared.sessions import SharedSessions
from asgi_gateway.shared.store import ValkeyStore
from asgi_gateway.shared.verbs import Verbs
from asgi_gateway.store.memory import MemoryStore
from asgi_gateway.store.records import Record

log = logging.getLogger(__name__)

SOURCE: Final = "store"
# A server that is restarted or fails over is not worth a word before.
SAID_AFTER_S: Final = 1.0
# Commands without a reply: what a server that stands still may hold up here.
MAX_WAITING: Final = 262_144
MAX_WAITING_BYTES: Final = 512 << 20
# What is still to be told when the process ends gets so long.
FLUSH_S: Final = 2.0


class Shared:
    """Opened after and closed before the gateway's own parts. Made first; `join` gives it these."""

    def __init__(self, settings: Settings, clock: Clock, ids: Ids, admission: Admission) -> None:
        """Raises BadUrl, MissingExtra."""
        given = settings.store
        self._settings = given
        self._keyed = settings.id_key is not None
        self._clock = clock
        self._ids = ids
        self._admission = admission
        self.link = Link(
            given.url,
            timeout_s=given.timeout_s,
            max_waiting=MAX_WAITING,
            max_waiting_bytes=MAX_WAITING_BYTES,
            clock=clock,
            prefix=given.prefix,
        )
        lifetimes = Lifetimes(undelivered=0, delivered=0)
        self.verbs = Verbs(
            self.link,
            lifetimes.but(given.completed_ttl_s, given.retrieved_ttl_s),
            epoch=ids.epoch,
            prefix=given.prefix,
        )
        self.member = Member(
            self.link,
            self.verbs,
            ids,
            clock,
            prefix=given.prefix,
            lease_s=given.lease_s,
            on_message=self._heard,
            on_gap=self._missed,
            on_fenced=self._lost_everything,
            on_forgotten=self._tell_everything,
            on_adopted=self._adopt if given.adopt else None,
        )
        self.store: ValkeyStore
        self.sessions: SharedSessions
        self._elsewhere: Elsewhere
        self._sampling: Sampling
        self._sessions: Sessions
        self._ending: set[asyncio.Task[None]] = set()
        self._again_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Shared {self.link!r} {self.member!r}>"

    def make_store(self, **limits: Any) -> ValkeyStore:
        degrade = self._settings.when_down == "degrade"
        self.store = ValkeyStore(
            self.verbs,
            degrade=degrade,
            adoptable=self._settings.adopt,
            fenced=self.member.fenced,
            doubtful=self.member.is_doubtful,
            **limits,
        )
        self._claims = Claims(self.link, self._ids, self.store, self._settings.prefix)
        return self.store

    def make_delivery(self, store: MemoryStore, clock: Clock, settings: PollSettings) -> Delivery:
        made = SharedDelivery(store, clock, settings)
        made.verbs = self.verbs
        return made

    def beginning(
        self,
        enqueue: Callable[[Record], None],
        withdrawn: Callable[[Record], None],
        renamed: Callable[[Record, str], None],
    ) -> Callable[[Record], None]:
        return self.store.beginning(enqueue, withdrawn, renamed)

    def told_gone(self, request_id: str, caller: str) -> None:
        self.store.told_gone(request_id, caller)

    def group_of(self, sampling_session_id: str) -> int:
        return group_of_session(sampling_session_id)

    def join(self, sampling: Sampling, sessions: Sessions, settings: Settings) -> None:
        self._sampling, self._sessions = sampling, sessions
        self._elsewhere = Elsewhere(
            self.verbs, self.store, sampling.delivery, sampling.cancel, self._ids.missing
        )
        self.sessions = SharedSessions(
            self.link,
            self._ids,
            sessions,
            self._clock,
            retention_s=settings.session.retention_s,
            prefix=settings.store.prefix,
            degrade=settings.store.when_down == "degrade",
            ended=self._ended_elsewhere,
        )

    # --- lifetime --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Raises SettingsError where the shared store does not answer and has to."""
        await self.link.open()
        try:
            if not self._keyed:
                self._ids.rekey(await self.member.key())
            else:
                await self.link.ask(None, ("PING",))
        except SharedStoreError as error:
            if self._settings.when_down == "require" or not self._keyed:
                await self.link.close()
                url = shown_url(self._settings.url)
                raise SettingsError([f"store.url: {url} does not answer: {error}"]) from error
        self.member.open()

    async def close(self) -> None:
        """Tell what is still to be told, and leave."""
        for task in self._ending:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self._is_behind():  # noqa: ASYNC110 - replies have no event of their own
                    await asyncio.sleep(0.01)
        told = not (self.store.outbox.behind or self.store.accepting.unshared)
        try:
            async with asyncio.timeout(FLUSH_S):
                await self.member.close(told=told)
        except TimeoutError:
            log.warning("the shared store did not hear of everything that ended here")
        await self.link.close()

    def _is_behind(self) -> bool:
        """Whether there is something that the shared store may yet hear of."""
        return self.link.up and (self.link.waiting > 0 or self.store.outbox.behind)

    def tick(self, now: float, swept: Swept) -> None:
        down_since = self.link.down_since
        if down_since is None:
            self._admission.clear(SOURCE)
            if now >= self._again_at and not self.store.again():
                self._again_at = now + SAID_AFTER_S
        elif now - down_since > SAID_AFTER_S and self._settings.when_down == "require":
            text = f"the shared store does not answer: {self.link.trouble}"
            self._admission.object(SOURCE, text, Unready)
        self.member.tick(now)
        self.sessions.tick(now)
        self._claims.tick(now)
        self._swept(swept)

    # --- what handlers ask -----------------------------------------------------------------------

    async def accepted(self, record: Record) -> None:
        await self.store.accepting.word(record)

    async def find(self, request_id: str, caller: str) -> Record:
        record = await self._elsewhere.find(request_id, caller)
        name = record.sampling_session_id
        if name and self._sessions.look_at(name) is None:
            with contextlib.suppress(
                GatewayError
            ):  # known from now on, for polls are signs of life
                await self.sessions.sampler(name, caller)
        return record

    def released(self, record: Record) -> None:
        self._elsewhere.released(record)

    async def cancel(self, request_id: str, caller: str) -> None:
        await self._elsewhere.cancel(request_id, caller)

    async def sampler(self, sampling_session_id: str, caller: str) -> SamplingSession:
        return await self.sessions.sampler(sampling_session_id, caller)

    async def session(self, session_id: str, caller: str) -> Session:
        try:
            return self._sessions.read(session_id, caller)
        except NotFound:
            return await self.sessions.find(session_id, caller)

    async def samplers(self, session: Session) -> list[str]:
        return await self.sessions.samplers(session)

    async def newest(self, caller: str, limit: int, offset: int) -> list[str]:
        return await self.sessions.newest(caller, limit, offset)

    async def join_sampling(self, sampling: SamplingSession) -> int:
        return await self.sessions.join(sampling)

    # --- sessions that end -----------------------------------------------------------------------

    async def finish(self, session: Session) -> None:
        """End a session's samples wherever they run. Raises Unready."""
        for identifier in await self.sessions.finished(session):
            await self._forget(identifier, told=True)
        try:
            await self.member.tell_all(f"f{session.session_id}")
        except SharedStoreError as error:
            raise Unready(f"the shared store: {error}", SOURCE) from error

    async def _forget(self, sampling_session_id: str, *, told: bool) -> None:
        accepted_by, scan = round(self._clock.wall_time() * 1000), ""
        while True:
            command = self.verbs.forget(
                sampling_session_id, None, told=told, accepted_by=accepted_by, scan=scan
            )
            try:
                scan = (await self.verbs.ask(command)).scan
            except SharedStoreError as error:
                raise Unready(f"the shared store: {error}", SOURCE) from error
            if not scan:
                return

    def _swept(self, swept: Swept) -> None:
        """What shows no life here may elsewhere; what is forgotten here is not elsewhere."""
        sessions = {sampling.session.session_id: sampling.session for sampling in swept.lapsed}
        for session in sessions.values():
            task = asyncio.get_running_loop().create_task(self._lapsed(session))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        for sampling in swept.forgotten:
            self._sampling.bulk.end_session_soon(sampling.sampling_session_id, finished=False)

    async def _lapsed(self, session: Session) -> None:
        silent_s = await self.sessions.silent_s(session)
        # What another process heard it may not have told yet.
        if silent_s < self._sessions.timeout_s + self.sessions.tell_every_s:
            self._sessions.alive(session, self._clock.now() - silent_s)
            return
        for sampling in list(session.sampling.values()):
            identifier = sampling.sampling_session_id
            self._sampling.bulk.end_session_soon(identifier, finished=False)
            try:
                await self._forget(identifier, told=False)
            except Unready as error:
                log.warning("a session that lapsed is not ended in the shared store: %s", error)

    def _ended_elsewhere(self, session: Session) -> None:
        """Its client said at another process that it is finished."""
        for sampling in self._sessions.finish(session):
            self._sampling.bulk.end_session_soon(sampling.sampling_session_id, finished=True)

    # --- what is heard ---------------------------------------------------------------------------

    def _heard(self, message: bytes) -> None:
        if message[:1] == b"f":
            self.sessions.heard_finished(message[1:].decode("ascii", "replace"))
        else:
            self._elsewhere.heard(message)

    def _missed(self) -> None:
        self._elsewhere.missed()
        self.sessions.look_again()
        self._claims.compare_all()

    def _tell_everything(self) -> None:
        self.sessions.tell_everything()
        self.store.tell_everything()
        # Who waits here is not known there any more; the others tell theirs within a beat.
        asyncio.get_running_loop().call_later(self._settings.lease_s, self._missed)

    def _lost_everything(self) -> None:
        """This process was taken for dead: what it runs was given back."""
        for record in self.store.unfinished():
            self._sampling.abandon(record)
        self._elsewhere.missed()

    def _adopt(self, found: list[Adopted]) -> None:
        now = self._clock.now()
        for each in found:
            record = adopted(each, now)
            if record is not None:
                self._sampling.adopted(record)
                self.store.adopt(record)
            else:
                self.store.outbox.end(each.request_id, told=False)
