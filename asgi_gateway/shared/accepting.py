"""Submits that wait for the shared store's word before their ids go out."""

import asyncio
import functools
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from asgi_gateway.errors import GatewayError, Unready
from asgi_gateway.shared.adoption import kept
from asgi_gateway.shared.errors import SharedStoreError
from asgi_gateway.shared.outcomes import Accepted, Fenced
from asgi_gateway.shared.verbs import Verbs
from asgi_gateway.store.records import Record


class Taker(Protocol):
    """What becomes of the record."""

    def taken_in(self, record: Record, request_id: str) -> None:
        """Ours to run, under this id: a lost sample keeps the one of before."""

    def shared_now(self, record: Record) -> None:
        """What was taken in here alone is known in the shared store."""

    def found(self, record: Record, request_id: str) -> None:
        """It is there already, under this id."""

    def turned_away(self, record: Record, *, unheard: bool) -> None:
        """Nobody runs it. unheard: it may have been taken in all the same."""


class Accepting:
    def __init__(
        self,
        verbs: Verbs,
        taker: Taker,
        *,
        degrade: bool,
        adoptable: bool,
        fenced: Callable[[], None],
    ) -> None:
        """degrade: samples are taken in also where the shared store does not answer. adoptable:
        another process may run them should this one die."""
        self._verbs = verbs
        self._taker = taker
        self._degrade = degrade
        self._adoptable = adoptable
        self._fenced = fenced
        # By the id that was meant for them.
        self._asked: dict[str, list[asyncio.Future[None]]] = {}
        # Accepted here alone; the shared store is to be told.
        self.unshared: dict[str, Record] = {}

    def __repr__(self) -> str:
        return f"<Accepting {len(self._asked)} asked, {len(self.unshared)} here alone>"

    def __contains__(self, request_id: str) -> bool:
        """Whether the shared store was not heard of it."""
        return request_id in self._asked or request_id in self.unshared

    def ask(self, record: Record) -> None:
        self._asked[record.request_id] = []
        self._send(record, self._answered)

    def _send(
        self, record: Record, done: Callable[[Record, str, Accepted | Exception], None]
    ) -> None:
        command = self._verbs.accept(
            record.request_id,
            None,
            sampling_session_id=record.sampling_session_id,
            seq_id=record.seq_id,
            digest=record.digest,
            caller=record.caller,
            nbytes=len(record.body or b""),
            adoptable=kept(record) if self._adoptable else None,
        )
        self._verbs.send(command, functools.partial(done, record, record.request_id))

    async def word(self, record: Record) -> None:
        """Wait for it where it is open.

        Raises:
            Unsupported: the sample was submitted with another body.
            Refusal: the shared store is full, or does not answer.
        """
        waiting = self._asked.get(record.request_id)
        if waiting is not None:
            future = asyncio.get_running_loop().create_future()
            waiting.append(future)
            await future

    def _answered(self, record: Record, asked_as: str, answer: Accepted | Exception) -> None:
        waiting = self._asked.pop(asked_as)
        problem: GatewayError | None = None
        if isinstance(answer, Accepted):
            if answer.fresh:
                self._taker.taken_in(record, answer.request_id)
            else:
                self._taker.found(record, answer.request_id)
        elif self._degrade and isinstance(answer, SharedStoreError):
            self.unshared[asked_as] = record
            self._taker.taken_in(record, asked_as)
        else:
            problem = self._problem(record, answer)
        for future in waiting:
            if future.done():
                continue
            if problem is None:
                future.set_result(None)
            else:
                future.set_exception(problem)

    def _problem(self, record: Record, error: Exception) -> GatewayError:
        unheard = isinstance(error, SharedStoreError)
        self._taker.turned_away(record, unheard=unheard)
        if isinstance(error, Fenced):
            self._fenced()
            return Unready("the shared store took this gateway for dead; again", "store")
        if not unheard and isinstance(error, GatewayError):
            return error
        return Unready(f"the shared store: {error}", "store")

    def again(self, budget: int) -> None:
        """Tell the shared store of some that were accepted without it."""
        for request_id in list(islice(self.unshared, budget)):
            record = self.unshared.pop(request_id)
            self._asked[request_id] = []
            self._send(record, self._shared)

    def _shared(self, record: Record, asked_as: str, answer: Accepted | Exception) -> None:
        for future in self._asked.pop(asked_as):
            if not future.done():
                future.set_result(None)
        if isinstance(answer, Accepted) and answer.request_id == asked_as:
            self._taker.shared_now(record)
        elif isinstance(answer, SharedStoreError):
            self.unshared[asked_as] = record
        elif isinstance(answer, Fenced):
            self._fenced()
        # Else another process has it under another id: ours is finished here alone.
