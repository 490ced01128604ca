"""The verbs about one sample: one method each, which makes the command to send.

    verbs.send(verbs.start(...), done)
    found = await verbs.ask(verbs.look(...))

Times are milliseconds of the wall clock; None leaves it to the server's own. Methods that take a
request id raise ValueError where it is not of our making; `group_of` says so before.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from asgi_gateway.shared import replies
from asgi_gateway.shared.commands import Argument, Calls, Command, Sender
from asgi_gateway.shared.groups import group_of, group_of_session, tags
from asgi_gateway.shared.library import VERB_PREFIX
from asgi_gateway.shared.outcomes import Accepted, Found, Moved
from asgi_gateway.store.records import Failure
from asgi_gateway.store.states import CANCEL, EVICT, FAIL, RETRY, START, SUCCEED, Event

T = TypeVar("T")


# Through a function bytes are copied twice: larger results are fetched by themselves.
INLINE_BYTES: Final = 16 << 10


class Lifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long what is settled stays, in milliseconds.

    lost: notes of lost samples. fence: how long an epoch that was buried may come back; it is
    refused so long. keep: the server's own limit for result bytes, where nobody sweeps any more.
    """

    undelivered: int
    delivered: int
    lost: int = 86_400_000
    fence: int = 86_400_000
    keep: int = 604_800_000

    def but(self, undelivered_s: float, delivered_s: float) -> "Lifetimes":
        """With other lifetimes of outcomes, in seconds."""
        undelivered, delivered = round(undelivered_s * 1000), round(delivered_s * 1000)
        return msgspec.structs.replace(self, undelivered=undelivered, delivered=delivered)


class SampleVerbs(Sender):
    """epoch: of this process; another one once it was fenced."""

    def __init__(
        self, calls: Calls, lifetimes: Lifetimes, *, epoch: str, prefix: str = "agw"
    ) -> None:
        super().__init__(calls)
        self.lifetimes = lifetimes
        self.epoch = epoch
        self._tags = tags(prefix)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.epoch}, {self.loader}>"

    def accept(
        self,
        request_id: str,
        now: int | None,
        *,
        sampling_session_id: str,
        seq_id: int,
        digest: bytes,
        caller: str,
        nbytes: int,
        max_unfinished: int = 0,
        max_bytes: int = 0,
        adoptable: tuple[bytes, bytes] | None = None,
    ) -> Command[Accepted]:
        """Take a sample in, or find it. Limits are of its group, 0 is none; adoptable: body and
        meta, kept until it is settled.

        Errors: Unsupported for another body, Overloaded, Fenced; the server's OOM.
        """
        group = group_of_session(sampling_session_id)
        return self._command(
            _ACCEPT,
            group,
            replies.accepted,
            request_id,
            self.epoch,
            "" if now is None else now,
            sampling_session_id,
            seq_id,
            digest,
            caller,
            nbytes,
            max_unfinished,
            max_bytes,
            *(adoptable or ()),
        )

    def start(self, request_id: str, now: int | None, reserve_bytes: int = 0) -> Command[Moved]:
        return self._move(_MOVE, request_id, (START,), now, value=reserve_bytes)

    def retry(self, request_id: str, now: int | None) -> Command[Moved]:
        return self._move(_MOVE, request_id, (RETRY,), now)

    def succeed(
        self,
        request_id: str,
        now: int | None,
        result: bytes,
        *,
        delivered: bool = False,
        start: bool = False,
    ) -> Command[Moved]:
        """start: its start was not told before, and is now. The server's OOM is an error; the
        sample is unfinished then."""
        ttl_ms = self.lifetimes.delivered if delivered else self.lifetimes.undelivered
        events = (START, SUCCEED) if start else (SUCCEED,)
        return self._move(_SUCCEED, request_id, events, now, ttl_ms, flag=delivered, value=result)

    def fail(self, request_id: str, now: int | None, failure: Failure) -> Command[Moved]:
        # A text from upstream may hold what is no character.
        text = failure.text.encode(errors="replace")
        ttl_ms = self.lifetimes.undelivered
        return self._move(
            _MOVE, request_id, (FAIL,), now, ttl_ms, value=text, category=failure.category
        )

    def cancel(self, request_id: str, now: int | None, caller: str = "") -> Command[Moved]:
        """Anybody may; the owner is told. caller: whose it must be, where that was not asked."""
        ttl_ms = self.lifetimes.undelivered
        return self._move(_MOVE, request_id, (CANCEL,), now, ttl_ms, caller=caller)

    def evict(self, request_id: str, now: int | None, *, told: bool) -> Command[Moved]:
        """An unfinished one by its owner, an outcome by anybody. told: its client knows or will not
        ask, and nothing stays; else a note does."""
        return self._move(_MOVE, request_id, (EVICT,), now, self.lifetimes.lost, flag=told)

    def look(self, request_id: str, caller: str, *, watch: bool) -> Command[Found | None]:
        """watch: `w<request_id>` comes once it is settled or gone. A result of up to INLINE_BYTES
        comes with it."""
        watcher = self.epoch if watch else ""
        return self._of_sample(_LOOK, request_id, replies.found, caller, watcher, INLINE_BYTES)

    def delivered(self, request_id: str, now: int | None) -> Command[bool | None]:
        """Its outcome went out on an open connection; whether for the first time."""
        return self._of_sample(
            _DELIVERED,
            request_id,
            replies.first_delivery,
            "" if now is None else now,
            self.lifetimes.delivered,
            self.lifetimes.keep,
        )

    def result(
        self, request_id: str, start: int = 0, nbytes: int | None = None
    ) -> Command[bytes | None]:
        """Result bytes, or a part; None where it is not held, empty for a part that is not."""
        group = group_of_ours(request_id)
        key = b"%b:r:%b" % (self._tags[group], request_id.encode())
        if nbytes is None:
            return Command(group, ("GET", key), replies.result)
        return Command(group, ("GETRANGE", key, start, start + nbytes - 1), replies.result)

    # --- inside ----------------------------------------------------------------------------------

    def _command(
        self, function: bytes, group: int, decode: Callable[[Any], T], *args: Argument
    ) -> Command[T]:
        return Command(group, ("FCALL", function, 1, self._tags[group], *args), decode)

    def _of_sample(
        self, function: bytes, request_id: str, decode: Callable[[Any], T], *args: Argument
    ) -> Command[T]:
        return self._command(function, group_of_ours(request_id), decode, request_id, *args)

    def _move(
        self,
        function: bytes,
        request_id: str,
        events: tuple[Event, ...],
        now: int | None,
        ttl_ms: int = 0,
        *,
        caller: str = "",
        flag: bool = False,
        value: Argument = 0,
        category: str = "",
    ) -> Command[Moved]:
        return self._of_sample(
            function,
            request_id,
            replies.moved,
            self.epoch,
            "" if now is None else now,
            "".join([str(event.value) for event in events]),
            caller,
            ttl_ms,
            self.lifetimes.keep,
            int(flag),
            value,
            category,
        )


def group_of_ours(request_id: str) -> int:
    """Raises ValueError."""
    group = group_of(request_id)
    if group is None:
        raise ValueError(f"no id of ours: {request_id!r:.60}")
    return group


def called(verb: str) -> bytes:
    """The name of a function."""
    return f"{VERB_PREFIX}{verb}".encode()


_ACCEPT: Final = called("accept")
_MOVE: Final = called("move")
_SUCCEED: Final = called("succeed")
_LOOK: Final = called("look")
_DELIVERED: Final = called("delivered")
