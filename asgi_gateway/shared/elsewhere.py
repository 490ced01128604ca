"""Samples that other processes run: looked up, waited for and cancelled from here.

A poll for one is parked for a *shadow*, a record of ours that takes part in nothing but polls. One
message comes for all who wait here, once the sample is settled; then its bytes are fetched once.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from asgi_gateway.codec import Want
from asgi_gateway.delivery import Delivery
from asgi_gateway.errors import GatewayError, Gone, Unready
from asgi_gateway.shared.errors import SharedStoreError
from asgi_gateway.shared.groups import group_of
from asgi_gateway.shared.outcomes import CorruptReply, Found, Moved
from asgi_gateway.shared.store import ValkeyStore
from asgi_gateway.shared.verbs import Verbs
from asgi_gateway.store.records import CANCELLED, Record
from asgi_gateway.store.states import GONE, QUEUED, RUNNING, SUCCEEDED, State

INTERRUPTED: Final = "this sample was interrupted; submit it again"
_WANT: Final = Want()


class Shadow(msgspec.Struct, eq=False):
    """polls: how many stand on it. asking: a look is on its way."""

    record: Record
    polls: int = 0
    asking: bool = False


class Elsewhere:
    def __init__(
        self,
        verbs: Verbs,
        store: ValkeyStore,
        delivery: Delivery,
        cancel: Callable[[Record], None],
        missing: Callable[[str, str], GatewayError],
    ) -> None:
        """cancel: of a sample that runs here. missing: what an id is that is not held: Gone, or
        NotFound."""
        self._verbs = verbs
        self._store = store
        self._delivery = delivery
        self._cancel = cancel
        self._missing = missing
        self._shadows: dict[str, Shadow] = {}

    def __repr__(self) -> str:
        return f"<Elsewhere {len(self._shadows)} polled for>"

    def __len__(self) -> int:
        return len(self._shadows)

    # --- requests --------------------------------------------------------------------------------

    async def find(self, request_id: str, caller: str) -> Record:
        """The shadow of a sample, to be `released`. While the shared store does not answer it is
        one that is not settled: its poll is held, and comes again.

        Raises:
            Gone: no longer held.
            NotFound: never issued to this caller.
        """
        if group_of(request_id) is None:
            raise self._missing(request_id, caller)
        shadow = self._shadows.get(request_id)
        if shadow is None:
            shadow = self._shadows[request_id] = Shadow(_record(request_id, caller))
        shadow.polls += 1
        try:
            await self._look(shadow)
        except BaseException:
            self.released(shadow.record)
            raise
        return shadow.record

    async def _look(self, shadow: Shadow) -> None:
        record = shadow.record
        if record.state > RUNNING:
            return
        verbs = self._verbs
        try:
            found = await verbs.ask(verbs.look(record.request_id, record.caller, watch=True))
            if found is not None and found.state is SUCCEEDED and record.result is None:
                record.result = found.result
                if record.result is None:
                    record.result = await verbs.ask(verbs.result(record.request_id))
                if record.result is None:
                    found = None
        except (SharedStoreError, CorruptReply):
            self._may_be_ours(record.request_id, record.caller)
            return
        if found is None:
            self._may_be_ours(record.request_id, record.caller)
        if record.state <= RUNNING:  # else a message came first, and this is older
            self._take(record, found)
            if record.state > RUNNING:
                self._wake(shadow)  # others that were parked before
        if record.state is GONE:
            raise Gone(INTERRUPTED)

    def released(self, record: Record) -> None:
        """A poll has its answer."""
        shadow = self._shadows.get(record.request_id)
        if shadow is not None and shadow.record is record:
            shadow.polls -= 1
            if not shadow.polls:
                del self._shadows[record.request_id]

    async def cancel(self, request_id: str, caller: str) -> None:
        """Whoever runs it is told; of one that is settled or gone nothing comes.

        Raises:
            NotFound: never issued to this caller.
            Unready: the shared store does not answer.
        """
        if group_of(request_id) is None:
            raise self._missing(request_id, caller)
        try:
            moved: Moved = await self._verbs.ask(self._verbs.cancel(request_id, None, caller))
        except (SharedStoreError, CorruptReply) as error:
            raise Unready(f"the shared store: {error}", "store") from error
        if moved.outcome == "missing":
            self._may_be_ours(request_id, caller)

    def _may_be_ours(self, request_id: str, caller: str) -> None:
        """Raises NotFound where it is not."""
        missing = self._missing(request_id, caller)
        try:
            if not isinstance(missing, Gone):
                raise missing
        finally:
            del missing  # a frame that it holds would hold it

    # --- messages --------------------------------------------------------------------------------

    def heard(self, message: bytes) -> None:
        """What was published to this process."""
        kind, about = message[:1], message[1:].decode("ascii", "replace")
        if kind == b"w":
            shadow = self._shadows.get(about)
            if shadow is not None:
                self._fetch(shadow)
        elif kind == b"p":
            clone, _, sampling_session_id = about.partition(":")
            if clone.isdigit():
                self._delivery.log_grew(sampling_session_id, int(clone))
        elif kind == b"c":
            record = self._store.find(about)
            if record is not None:
                self._cancel(record)

    def missed(self) -> None:
        """Messages may have been: look at everything that is waited for."""
        for shadow in list(self._shadows.values()):
            self._look_again(shadow)
        self._delivery.all_logs_grew()

    def _fetch(self, shadow: Shadow) -> None:
        """It is settled, most often with a result."""
        if shadow.asking or shadow.record.state > RUNNING:
            return
        shadow.asking = True

        def done(result: bytes | Exception | None) -> None:
            shadow.asking = False
            if isinstance(result, bytes):
                shadow.record.result = result
                shadow.record.state = SUCCEEDED
                self._wake(shadow)
            else:
                self._look_again(shadow)

        self._verbs.send(self._verbs.result(shadow.record.request_id), done)

    def _look_again(self, shadow: Shadow) -> None:
        if shadow.asking or shadow.record.state > RUNNING:
            return
        shadow.asking = True
        record = shadow.record

        def done(found: Found | Exception | None) -> None:
            shadow.asking = False
            if isinstance(found, Exception) or record.state > RUNNING:
                return  # it is looked at when the shared store answers again
            if found is not None and found.state is SUCCEEDED:
                self._fetch(shadow)
                return
            self._take(record, found)
            if record.state > RUNNING:
                self._wake(shadow)

        command = self._verbs.look(record.request_id, record.caller, watch=True)
        self._verbs.send(command, done)

    def _take(self, record: Record, found: Found | None) -> None:
        """What the shared store says of it."""
        record.state = found.state if found is not None else GONE
        if found is None:
            return
        record.sampling_session_id, record.seq_id = found.sampling_session_id, found.seq_id
        if found.state is State.CANCELLED:
            record.failure = CANCELLED
        elif found.failure is not None:
            record.failure = found.failure
        elif found.state is GONE:
            self._store.told_gone(record.request_id, record.caller)

    def _wake(self, shadow: Shadow) -> None:
        self._delivery.settled_elsewhere(shadow.record)


def _record(request_id: str, caller: str) -> Record:
    return Record(
        request_id=request_id,
        caller=caller,
        sampling_session_id="",
        seq_id=0,
        digest=b"",
        want=_WANT,
        prompt_tokens=0,
        reserve_bytes=0,
        body=None,
        accepted_at=0.0,
        state=QUEUED,
    )
