"""One short coroutine per route: decode, call, reply. Decisions live below, sockets above."""

from typing import Final

import msgspec

from asgi_gateway import protocol
from asgi_gateway.asgi import PROTOBUF, TEXT, Peer, Receive, Reply, Scope, error_reply, header
from asgi_gateway.clock import Clock
from asgi_gateway.errors import Gone, Refusal, Unready
from asgi_gateway.metrics import Metrics
from asgi_gateway.protocol import Reader
from asgi_gateway.sampling import Outcome, Sampling
from asgi_gateway.sessions import Sessions
from asgi_gateway.settings import Settings
from asgi_gateway.store.records import Record
from asgi_gateway.upstream.catalog import Catalog
from asgi_gateway.upstream.request import EMPTY_STOP_SINCE, build

OK: Final = Reply(200, b'{"status":"ok"}')
EMPTY: Final = Reply(200, b"{}")
ACCEPTED: Final = Reply(200, b'{"status":"accepted"}')
# One caller until API keys exist; ids and sessions are already bound to it.
CALLER: Final = "default"


class Call(msgspec.Struct, gc=False):
    """One request as a handler sees it; `tail` is what the path has after the route's prefix."""

    scope: Scope
    receive: Receive
    body: bytes
    tail: str


class Handlers:
    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        sampling: Sampling,
        sessions: Sessions,
        catalog: Catalog,
        metrics: Metrics,
    ) -> None:
        self._clock = clock
        self._sampling = sampling
        self._sessions = sessions
        self._catalog = catalog
        self._metrics = metrics
        client = settings.client
        self._config = Reply(
            200,
            protocol.encode(
                {
                    "sample_max_concurrent_requests": client.sample_max_concurrent_requests,
                    "sample_dispatch_bytes_semaphore_size": (
                        client.sample_dispatch_bytes_semaphore_size
                    ),
                    "inflight_response_bytes_semaphore_size": (
                        client.inflight_response_bytes_semaphore_size
                    ),
                }
            ),
        )
        self._dynamic_config = Reply(
            200, protocol.encode({"refresh_interval_sec": client.refresh_interval_sec})
        )

    # --- sampling --------------------------------------------------------------------------------

    async def asample(self, call: Call) -> Reply:
        request = _SAMPLE(call.body)
        sampling = self._sessions.find_sampling(request.sampling_session_id, CALLER)
        self._sessions.alive(sampling.session, self._clock.now())
        model = sampling.model
        try:
            record = self._sampling.submit(
                CALLER,
                sampling.sampling_session_id,
                request.seq_id,
                build(
                    request,
                    model=model.upstream_name,
                    cache_salt=model.cache_salt,
                    max_context=self._catalog.max_context(model.upstream_name),
                    empty_stop_ends_nothing=_sdk_version(call.scope) >= EMPTY_STOP_SINCE,
                ),
            )
        except Refusal as refusal:
            self._metrics.refusals[str(refusal.status)] += 1
            raise
        return Reply(200, _promise(record))

    async def retrieve_future(self, call: Call) -> Reply:
        request = _RETRIEVE(call.body)
        record = self._sampling.find(request.request_id, CALLER)
        self._sessions.sign_of_life(record.sampling_session_id, self._clock.now())
        peer = Peer(call.receive)
        try:
            outcome = await self._sampling.outcome(record, peer)
            if peer.seen_open() and outcome is Outcome.READY:
                self._sampling.delivered(record)
        finally:
            peer.close()
        self._metrics.polls["abandoned" if peer.gone else outcome.value] += 1
        if outcome is Outcome.PENDING:
            return self._try_again(record)
        if outcome is Outcome.GONE or (record.result is None and record.failure is None):
            return error_reply(Gone("this sample was interrupted; submit it again"))
        if record.failure is not None:
            failure = {"error": record.failure.text, "category": record.failure.category}
            return Reply(200, protocol.encode(failure))
        return Reply(200, record.result or b"", PROTOBUF)

    def _try_again(self, record: Record) -> Reply:
        state, reason = self._sampling.queue_state(record)
        body = {
            "type": "try_again",
            "request_id": record.request_id,
            "queue_state": state,
            "queue_state_reason": reason,
        }
        return Reply(408, protocol.encode(body))

    # --- handshake -------------------------------------------------------------------------------

    async def client_config(self, call: Call) -> Reply:
        _CLIENT_CONFIG(call.body)
        return self._config

    async def dynamic_config(self, call: Call) -> Reply:
        _CLIENT_CONFIG(call.body)
        return self._dynamic_config

    async def create_session(self, call: Call) -> Reply:
        _CREATE_SESSION(call.body)
        session = self._sessions.create(CALLER, self._clock.now())
        return _json({"session_id": session.session_id, "type": "create_session"})

    async def create_sampling_session(self, call: Call) -> Reply:
        request = _CREATE_SAMPLING(call.body)
        session = self._sessions.find(request.session_id, CALLER)
        self._sessions.alive(session, self._clock.now())
        model = await self._catalog.resolve(request.base_model, request.model_path)
        made = self._sessions.create_sampling(session, request.sampling_session_seq_id, model)
        return _json(
            {
                "sampling_session_id": made.sampling_session_id,
                "type": "create_sampling_session",
            }
        )

    async def session_heartbeat(self, call: Call) -> Reply:
        session = self._sessions.find(_HEARTBEAT(call.body).session_id, CALLER)
        self._sessions.alive(session, self._clock.now())
        return _json({"type": "session_heartbeat"})

    async def finish_session(self, call: Call) -> Reply:
        _FINISH(call.body)
        try:
            session = self._sessions.find(call.tail, CALLER)
        except Gone:
            return EMPTY  # a repeat
        for sampling in self._sessions.finish(session):
            self._sampling.cancel_session(sampling.sampling_session_id)
        return EMPTY

    async def sampler(self, call: Call) -> Reply:
        sampling = self._sessions.find_sampling(call.tail, CALLER)
        self._sessions.alive(sampling.session, self._clock.now())
        return Reply(
            200,
            protocol.encode(
                protocol.Sampler(
                    sampler_id=sampling.sampling_session_id,
                    base_model=sampling.model.base_model,
                    model_path=sampling.model.model_path,
                )
            ),
        )

    async def server_capabilities(self, _: Call) -> Reply:
        if not self._catalog.known:
            await self._catalog.refresh()
        if not self._catalog.known:
            raise Unready("no upstream has said which models it serves yet")
        return Reply(200, protocol.encode(protocol.Capabilities(self._catalog.supported())))

    async def telemetry(self, _: Call) -> Reply:
        """Accepted and dropped: bodies hold stack traces and paths of the user's machine."""
        return ACCEPTED

    # --- operations ------------------------------------------------------------------------------

    async def healthz(self, _: Call) -> Reply:
        return OK

    async def metrics(self, _: Call) -> Reply:
        return Reply(200, self._metrics.render(), TEXT)


def _promise(record: Record) -> bytes:
    """The id and one sequence id per sample, the same at every repeat. Ids need no escaping."""
    request_id = record.request_id
    sequences = ",".join([f'"{request_id}-{i}"' for i in range(record.want.sequences)])
    return f'{{"request_id":"{request_id}","sample_sequence_ids":[{sequences}]}}'.encode()


def _sdk_version(scope: Scope) -> tuple[int, int]:
    """Major and minor of the client's SDK; (0, 0) where it does not say."""
    parts = (header(scope, b"x-stainless-package-version") or b"").split(b".")
    if len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit():
        return int(parts[0]), int(parts[1])
    return 0, 0


def _json(value: object) -> Reply:
    return Reply(200, protocol.encode(value))


def _reader(kind: type) -> Reader:
    return Reader(msgspec.json.Decoder(kind))


_SAMPLE: Final = _reader(protocol.SampleRequest)
_RETRIEVE: Final = _reader(protocol.RetrieveFuture)
_CLIENT_CONFIG: Final = _reader(protocol.ClientConfig)
_CREATE_SESSION: Final = _reader(protocol.CreateSession)
_CREATE_SAMPLING: Final = _reader(protocol.CreateSamplingSession)
_HEARTBEAT: Final = _reader(protocol.Heartbeat)
_FINISH: Final = _reader(protocol.FinishSession)
