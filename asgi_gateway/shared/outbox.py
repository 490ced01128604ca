"""What this process has to tell the shared store of its samples, told again until it is heard.

Outcomes and ends go out as they happen; nothing waits for their replies. What a reply shows to have
failed, with the connection or because the server is full, is sent again by `again`.
"""

import functools
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from asgi_gateway.errors import IllegalTransition
from asgi_gateway.shared.commands import Command
from asgi_gateway.shared.errors import SharedStoreError
from asgi_gateway.shared.outcomes import Acknowledged, Fenced, Moved
from asgi_gateway.shared.verbs import Verbs
from asgi_gateway.store.expiry import Deadlines
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import CANCELLED, FAILED, SUCCEEDED

# A run that lasts is told to the shared store, for polls elsewhere; most end before.
TELL_START_AFTER_S: Final = 1.0
# An acknowledgement within this makes a note of the delivery needless.
TELL_DELIVERY_AFTER_S: Final = 1.0
# Of up to 128 results each; what is not acknowledged is dropped when its time is over.
MAX_ACKNOWLEDGEMENTS: Final = 2048


class Outbox:
    def __init__(
        self,
        verbs: Verbs,
        *,
        fenced: Callable[[], None],
        overtaken: Callable[[Record], None],
        unknown: Callable[[Record], None],
    ) -> None:
        """fenced: this process was taken for dead. overtaken: an outcome came too late, another
        process cancelled the sample or has it now. unknown: the shared store lost the sample."""
        self._verbs = verbs
        self._fenced = fenced
        self._overtaken = overtaken
        self._unknown = unknown
        # Outcomes that the shared store does not have, as far as we know.
        self.unwritten: dict[str, Record] = {}
        self._failed: dict[str, Record] = {}
        self._failed_ends: dict[str, bool] = {}
        self._failed_acknowledgements: list[Command[Acknowledged]] = []
        # On their way.
        self._ends = 0
        # Runs whose start was not told, and deliveries.
        self._starts: Deadlines[Record] = Deadlines(TELL_START_AFTER_S)
        self._deliveries: Deadlines[str] = Deadlines(TELL_DELIVERY_AFTER_S)
        self.late = 0

    def __repr__(self) -> str:
        return f"<Outbox {len(self.unwritten)} unwritten, {len(self._failed_ends)} ends to tell>"

    @property
    def behind(self) -> bool:
        """Whether the shared store does not know of everything that ended here."""
        return bool(self.unwritten or self._failed_ends or self._ends)

    # --- runs ------------------------------------------------------------------------------------

    def started(self, record: Record, now: float) -> None:
        self._starts.start(record, now)

    def came_back(self, record: Record) -> None:
        """Its run ended without an outcome."""
        if not self._starts.stop(record):
            self._verbs.send(self._verbs.retry(record.request_id, None), self._noted)

    # --- outcomes --------------------------------------------------------------------------------

    def outcome(self, record: Record) -> None:
        self._write(record, self._starts.stop(record))

    def _write(self, record: Record, starts: bool) -> None:
        request_id, verbs = record.request_id, self._verbs
        self.unwritten[request_id] = record
        command: Any
        if record.state is SUCCEEDED:
            assert record.result is not None
            command = verbs.succeed(request_id, None, record.result, start=starts)
        elif record.state is FAILED:
            assert record.failure is not None
            command = verbs.fail(request_id, None, record.failure)
        else:
            command = verbs.cancel(request_id, None)
        verbs.send(command, functools.partial(self._written, record, starts))

    def _written(self, record: Record, starts: bool, answer: Moved | Exception) -> None:
        request_id = record.request_id
        if self.unwritten.get(request_id) is not record:
            return  # let go of meanwhile
        if isinstance(answer, Moved):
            del self.unwritten[request_id]
            if answer.outcome in ("late", "foreign") and answer.state is not record.state:
                self.late += 1
                self._overtaken(record)
            elif answer.outcome == "missing" and record.state is CANCELLED:
                self._overtaken(record)  # with its session, say
            elif answer.outcome == "missing":
                self._unknown(record)
        elif isinstance(answer, Fenced):
            del self.unwritten[request_id]
            self._overtaken(record)
            self._fenced()
        elif isinstance(answer, IllegalTransition) and record.state is SUCCEEDED:
            # Whether its start was heard was open: the connection was lost meanwhile.
            self._write(record, not starts)
        else:
            self._failed[request_id] = record

    # --- ends ------------------------------------------------------------------------------------

    def end(self, request_id: str, *, told: bool) -> None:
        """Nothing is held of it any more. told: its client knows, or will never ask."""
        self._ends += 1
        command = self._verbs.evict(request_id, None, told=told)
        self._verbs.send(command, functools.partial(self._ended, request_id, told))

    def end_later(self, request_id: str) -> None:
        """The shared store may have taken it in, and was not heard."""
        self._failed_ends[request_id] = False

    def _ended(self, request_id: str, told: bool, answer: Moved | Exception) -> None:
        self._ends -= 1
        if isinstance(answer, Fenced):
            self._fenced()
        elif not isinstance(answer, Moved):
            self._failed_ends[request_id] = told

    def forget(self, record: Record) -> bool:
        """Nothing is told of it any more; whether its outcome was still to be told."""
        self._starts.stop(record)
        self._failed.pop(record.request_id, None)
        return self.unwritten.pop(record.request_id, None) is not None

    # --- deliveries ------------------------------------------------------------------------------

    def delivered(self, request_id: str, now: float) -> None:
        self._deliveries.start(request_id, now)

    def acknowledged(self, request_id: str) -> None:
        self._deliveries.stop(request_id)

    def acknowledge(self, command: Command[Acknowledged]) -> None:
        self._verbs.send(command, functools.partial(self._heard_of, command))

    def _heard_of(self, command: Command[Acknowledged], answer: Acknowledged | Exception) -> None:
        if (
            isinstance(answer, SharedStoreError)
            and len(self._failed_acknowledgements) < MAX_ACKNOWLEDGEMENTS
        ):
            self._failed_acknowledgements.append(command)

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now: float, budget: int) -> None:
        for record in self._starts.due(now, budget):
            self._verbs.send(self._verbs.start(record.request_id, None), self._noted)
        for request_id in self._deliveries.due(now, budget):
            self._verbs.send(self._verbs.delivered(request_id, None), self._noted)

    def again(self, budget: int) -> bool:
        """Tell some of what failed; whether that is not all."""
        more = max(len(self._failed), len(self._failed_ends)) > budget
        for request_id in list(islice(self._failed, budget)):
            self._write(self._failed.pop(request_id), starts=False)
        for request_id in list(islice(self._failed_ends, budget)):
            self.end(request_id, told=self._failed_ends.pop(request_id))
        failed, self._failed_acknowledgements = self._failed_acknowledgements, []
        for command in failed:
            self.acknowledge(command)
        return more

    def _noted(self, answer: object) -> None:
        if isinstance(answer, Fenced):
            self._fenced()
