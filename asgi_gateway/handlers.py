"""The sampling routes, one short coroutine each: decode, call, reply.

Decisions live below, sockets above. The other routes are in `handshake`.
"""

import re
from collections.abc import Sequence
from typing import Final, Protocol

from asgi_gateway import protocol, replies
from asgi_gateway.asgi import (
    EMPTY,
    PROTOBUF,
    Call,
    Reply,
    Scope,
    error_reply,
    header,
    json_reply,
)
from asgi_gateway.clock import Clock
from asgi_gateway.errors import Gone, Malformed, NotFound, Refusal, Unready
from asgi_gateway.metrics import Metrics
from asgi_gateway.peer import Peer
from asgi_gateway.protocol import reader
from asgi_gateway.replies import Failed, Finished
from asgi_gateway.sampling import Sampling
from asgi_gateway.sessions import SamplingSession, Sessions
from asgi_gateway.settings import Settings
from asgi_gateway.store.completions import Completion, Page
from asgi_gateway.store.records import Record
from asgi_gateway.tracing.context import carried
from asgi_gateway.upstream.catalog import Catalog
from asgi_gateway.upstream.request import EMPTY_STOP_SINCE, build


class Behind(Protocol):
    """The trainer, where there is one: it makes samplers too."""

    async def minted(self, sampling_session_id: str, call: Call) -> SamplingSession:
        """A sampler of the trainer's. Raises NotFound where it has none of this id for the caller,
        Forbidden where the caller may not use its model."""


class Elsewhere(Protocol):
    """The other gateways, and what is shared with them."""

    async def accepted(self, record: Record) -> None:
        """Wait until the shared store has taken in a sample of ours; of one that is there already
        the record has the id then. Raises Refusal, Unsupported."""

    async def find(self, request_id: str, caller: str) -> Record:
        """A sample that is not ours, to be parked for and `released`. Raises Gone, or NotFound
        where no id of ours."""

    def released(self, record: Record) -> None: ...

    async def cancel(self, request_id: str, caller: str) -> None:
        """Raises NotFound where no id of ours."""

    async def sampler(self, sampling_session_id: str, caller: str) -> SamplingSession:
        """Raises NotFound."""

    async def join_sampling(self, sampling: SamplingSession) -> int: ...


class SamplingHandlers:
    def __init__(
        self,
        *,
        clock: Clock,
        sampling: Sampling,
        sessions: Sessions,
        catalog: Catalog,
        metrics: Metrics,
        inline_bytes: int,
        behind: Behind | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._clock = clock
        self._sampling = sampling
        self._sessions = sessions
        self._catalog = catalog
        self._metrics = metrics
        self._inline_bytes = inline_bytes
        self._behind = behind
        # The other gateways, where a store is shared with them.
        self._elsewhere = elsewhere

    def reconfigure(self, settings: Settings) -> None:
        self._inline_bytes = settings.poll.inline_bytes

    async def _sampler(self, sampling_session_id: str, call: Call) -> SamplingSession:
        """A sampling session of this caller, alive from now; the trainer may have minted it."""
        try:
            found = self._sessions.find_sampling(sampling_session_id, call.caller.name)
        except NotFound:
            if self._elsewhere is not None:
                return await self._elsewhere.sampler(sampling_session_id, call.caller.name)
            ours = self._sessions.may_have_issued(sampling_session_id, call.caller.name)
            if self._behind is None or ours:
                raise
            found = await self._behind.minted(sampling_session_id, call)
        self._sessions.alive(found.session, self._clock.now())
        return found

    async def asample(self, call: Call) -> Reply:
        request = _SAMPLE(call.body)
        sampling = await self._sampler(request.sampling_session_id, call)
        model = sampling.model
        params = request.sampling_params
        empty_stop = params is not None and params.stop == []
        try:
            record = self._sampling.submit(
                call.caller,
                sampling.sampling_session_id,
                request.seq_id,
                build(
                    request,
                    model=model.upstream_name,
                    cache_salt=model.cache_salt,
                    max_context=self._catalog.max_context(model.upstream_name),
                    empty_stop_ends_nothing=empty_stop
                    and _sdk_version(call.scope) >= EMPTY_STOP_SINCE,
                ),
                carried(call.scope["headers"]),
            )
            if self._elsewhere is not None:
                await self._elsewhere.accepted(record)
        except Refusal as refusal:
            self._metrics.refusals[refusal.source] += 1
            raise
        return Reply(200, _promise(record))

    async def retrieve_future(self, call: Call) -> Reply:
        request = _RETRIEVE(call.body)
        caller = call.caller.name
        if self._elsewhere is None:
            record = self._sampling.find(request.request_id, caller)
        else:
            held = self._sampling.held(request.request_id, caller)
            record = held or await self._elsewhere.find(request.request_id, caller)
        self._sessions.sign_of_life(record.sampling_session_id, self._clock.now())
        peer = Peer(call.receive)
        try:
            outcome = await self._sampling.delivery.outcome(record, peer)
            here = peer.seen_open()
            if outcome == "ready":
                reply, whole = self._ready(record, call.scope, bool(request.allow_metadata_only))
                if whole and here:
                    self._sampling.delivered(record)
            else:
                reply = self._try_again(record)
        finally:
            peer.close()
            if self._elsewhere is not None:
                self._elsewhere.released(record)
        self._metrics.polls["abandoned" if peer.gone else outcome] += 1
        if outcome == "gone":
            if not peer.gone:
                self._sampling.told_gone(record)
            return error_reply(Gone("this sample was interrupted; submit it again"))
        return reply

    def _ready(self, record: Record, scope: Scope, metadata_allowed: bool) -> tuple[Reply, bool]:
        """The answer with a settled outcome, and whether it holds the outcome itself."""
        if record.failure is not None or record.result is None:
            failure = record.failure
            text = failure.text if failure is not None else "the sample has no result"
            category = failure.category if failure is not None else "unknown"
            return json_reply(replies.FailedSample(text, category)), True
        # As SDKs from 0.25 on ask, and as any client may.
        if _WANTS_PROTOBUF in scope["headers"] or _accepts_protobuf(scope):
            reply = Reply(200, record.result, PROTOBUF)
        else:
            reply = Reply(200, self._sampling.json_of(record))
        if metadata_allowed and len(reply.body) > self._inline_bytes:
            announced = replies.MetadataOnly(record.request_id, len(reply.body))
            return json_reply(announced), False
        return reply, True

    def _try_again(self, record: Record) -> Reply:
        state, reason = self._sampling.queue_state(record)
        return json_reply(replies.TryAgain(record.request_id, state, reason), 408)

    async def retrieve_futures(self, call: Call) -> Reply:
        request = _RETRIEVE_MANY(call.body)
        target = request.target
        if target.type != "sampling_session":
            raise Malformed(f"target.type is {target.type!r:.40}, must be sampling_session")
        delivery, peer = self._sampling.delivery, Peer(call.receive)
        try:
            sampling = await self._sampler(target.sampling_session_id, call)
            if request.retrieved_request_ids:
                await self._sampling.bulk.acknowledge(
                    request.retrieved_request_ids, call.caller.name
                )
            page = await delivery.completions(
                sampling.sampling_session_id,
                target.cloned_sampler_id,
                request.prev_cursor,
                peer,
                request.timeout,
            )
        except NotFound:
            # 404 would poison the whole client, also for samples that it submits elsewhere.
            if not self._sessions.may_have_issued(target.sampling_session_id, call.caller.name):
                raise
            await delivery.nothing(peer, request.timeout)
            page = Page([], request.prev_cursor)
        except Unready:
            if self._elsewhere is None:
                raise
            # The shared store does not answer: repeated at once, it would be asked for the more.
            await delivery.nothing(peer, request.timeout)
            page = Page([], request.prev_cursor)
        finally:
            peer.close()
        kind = "completions" if page.completions else "none"
        self._metrics.polls["abandoned" if peer.gone else kind] += 1
        return json_reply(replies.CompletionPage(_listed(page.completions), page.cursor))

    async def cancel_future(self, call: Call) -> Reply:
        request_id, caller = _CANCEL(call.body).request_id, call.caller.name
        if self._elsewhere is not None and self._sampling.held(request_id, caller) is None:
            await self._elsewhere.cancel(request_id, caller)
            return EMPTY
        try:
            self._sampling.cancel(self._sampling.find(request_id, caller))
        except Gone:
            return EMPTY  # nothing left to cancel
        return EMPTY

    async def join_sampling_session(self, call: Call) -> Reply:
        sampling = await self._sampler(_JOIN(call.body).sampling_session_id, call)
        if self._elsewhere is not None:
            counter = await self._elsewhere.join_sampling(sampling)
        else:
            counter = self._sessions.join(sampling)
        return json_reply(replies.SamplingSessionJoined(counter))


def _promise(record: Record) -> bytes:
    """The id and one sequence id per sample, the same at every repeat. Ids need no escaping."""
    request_id = record.request_id
    if record.want.sequences == 1:
        return f'{{"request_id":"{request_id}","sample_sequence_ids":["{request_id}-0"]}}'.encode()
    sequences = ",".join([f'"{request_id}-{i}"' for i in range(record.want.sequences)])
    return f'{{"request_id":"{request_id}","sample_sequence_ids":[{sequences}]}}'.encode()


def _listed(completions: Sequence[Completion]) -> list[Finished | Failed]:
    """The entries of a batched poll. The client fetches either kind."""
    return [
        Finished(completion.request_id, len(result))
        if (result := completion.result) is not None
        else Failed(completion.request_id)
        for completion in completions
    ]


def _sdk_version(scope: Scope) -> tuple[int, int]:
    """Major and minor of the client's SDK; (0, 0) where it does not say."""
    match = _VERSION.match(header(scope, b"x-stainless-package-version") or b"")
    return (int(match[1]), int(match[2])) if match is not None else (0, 0)


def _accepts_protobuf(scope: Scope) -> bool:
    """Whether it is among the kinds of the Accept header, and not with q=0."""
    for accepted in (header(scope, b"accept") or b"").lower().split(b","):
        kind, *parameters = accepted.split(b";")
        if kind.strip() == PROTOBUF:
            return not any(_REFUSED.fullmatch(parameter) for parameter in parameters)
    return False


_REFUSED: Final = re.compile(rb"\s*q\s*=\s*0(\.0*)?\s*")
# Few digits: int() raises on thousands of them, and headers are not ours to trust.
_VERSION: Final = re.compile(rb"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_WANTS_PROTOBUF: Final = (b"accept", PROTOBUF)
# A chunk has three strings: two names and its type.
_SAMPLE: Final = reader(protocol.SampleRequest, max_strings=4 * protocol.MAX_OBJECTS)
_RETRIEVE: Final = reader(protocol.RetrieveFuture)
_RETRIEVE_MANY: Final = reader(protocol.RetrieveFutures, max_strings=protocol.MAX_ACKNOWLEDGED + 64)
_CANCEL: Final = reader(protocol.CancelFuture)
_JOIN: Final = reader(protocol.JoinSamplingSession)
