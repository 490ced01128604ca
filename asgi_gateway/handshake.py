"""Everything around sampling: configuration, sessions, samplers, capabilities, health, metrics."""

from typing import Any, Final

from asgi_gateway import protocol, replies
from asgi_gateway.access.models import require
from asgi_gateway.admission import SOURCES, Admission
from asgi_gateway.asgi import EMPTY, TEXT, Call, Reply, json_reply
from asgi_gateway.clock import Clock
from asgi_gateway.errors import Gone, Malformed, Unready
from asgi_gateway.metrics import Metrics
from asgi_gateway.protocol import reader
from asgi_gateway.sampling import Sampling
from asgi_gateway.sessions import SamplingSession, Session, Sessions
from asgi_gateway.settings import ClientSettings, Settings
from asgi_gateway.upstream.catalog import Catalog, Model

OK: Final = json_reply(replies.Healthy())
ACCEPTED: Final = json_reply(replies.Accepted())


class HandshakeHandlers:
    def __init__(
        self,
        *,
        clock: Clock,
        sampling: Sampling,
        sessions: Sessions,
        catalog: Catalog,
        metrics: Metrics,
        admission: Admission,
        client: ClientSettings,
        journaled: bool,
    ) -> None:
        """journaled: whether sessions and open samples survive a restart."""
        self._clock = clock
        self._sampling = sampling
        self._sessions = sessions
        self._catalog = catalog
        self._metrics = metrics
        self._admission = admission
        self._journaled = journaled
        self._take(client)
        self._add_to(metrics)

    def _take(self, client: ClientSettings) -> None:
        self._config = json_reply(_config(client, self._journaled))
        self._dynamic_config = json_reply(
            replies.DynamicFlags(client.refresh_interval_sec, client.sample_cancel_enabled)
        )

    def reconfigure(self, settings: Settings) -> None:
        """What clients are told from now on."""
        self._take(settings.client)

    async def client_config(self, call: Call) -> Reply:
        _CLIENT_CONFIG(call.body)
        return self._config

    async def dynamic_config(self, call: Call) -> Reply:
        _CLIENT_CONFIG(call.body)
        return self._dynamic_config

    async def create_session(self, call: Call) -> Reply:
        request = _CREATE_SESSION(call.body)
        session = self._sessions.create(
            call.caller.name,
            self._clock.now(),
            display_name=request.display_name,
            user_metadata=_kept(request.user_metadata),
        )
        await self._session_made(session)
        return json_reply(replies.SessionCreated(session.session_id))

    async def create_sampling_session(self, call: Call) -> Reply:
        request = _CREATE_SAMPLING(call.body)
        session = await self._session(request.session_id, call)
        self._sessions.alive(session, self._clock.now())
        require(call.caller, request.base_model, request.model_path)
        model = await self._model(request, call)
        seq_id = request.sampling_session_seq_id
        made = self._sessions.create_sampling(session, seq_id, model)
        made = await self._sampling_made(made, seq_id)
        return json_reply(replies.SamplingSessionCreated(made.sampling_session_id))

    async def _session_made(self, session: Session) -> None:
        """Before its id goes out."""

    async def _sampling_made(self, made: SamplingSession, _: int) -> SamplingSession:
        """The same; the one to answer with."""
        return made

    async def _session(self, session_id: str, call: Call) -> Session:
        return await self._known(session_id, call)

    async def _known(self, session_id: str, call: Call) -> Session:
        """One that was made here, or at a gateway that shares the store."""
        return self._sessions.find(session_id, call.caller.name)

    async def _model(self, request: protocol.CreateSamplingSession, _: Call) -> Model:
        return await self._catalog.resolve(request.base_model, request.model_path)

    async def session_heartbeat(self, call: Call) -> Reply:
        session = await self._known(_HEARTBEAT(call.body).session_id, call)
        self._sessions.alive(session, self._clock.now())
        return json_reply(replies.HeartbeatSeen())

    async def finish_session(self, call: Call) -> Reply:
        _FINISH(call.body)
        try:
            session = await self._known(call.tail, call)
        except Gone:
            return EMPTY  # a repeat
        await self._end(session)
        return EMPTY

    async def _end(self, session: Session) -> None:
        for sampling in self._sessions.finish(session):
            await self._sampling.bulk.end_session(sampling.sampling_session_id, finished=True)

    async def sampler(self, call: Call) -> Reply:
        sampling = self._sessions.find_sampling(call.tail, call.caller.name)
        self._sessions.alive(sampling.session, self._clock.now())
        return json_reply(
            protocol.Sampler(
                sampler_id=sampling.sampling_session_id,
                base_model=sampling.model.base_model,
                model_path=sampling.model.model_path,
            )
        )

    async def server_capabilities(self, call: Call) -> Reply:
        if not self._catalog.known:
            await self._catalog.refresh()
        if not self._catalog.known:
            raise Unready("no upstream has said which models it serves yet")
        supported, models = self._catalog.supported(), call.caller.models
        if models is not None:
            supported = [model for model in supported if model.model_name in models]
        return json_reply(protocol.Capabilities(supported))

    async def telemetry(self, _: Call) -> Reply:
        """Accepted and dropped: bodies hold stack traces and paths of the user's machine."""
        return ACCEPTED

    async def healthz(self, _: Call) -> Reply:
        return OK

    async def livez(self, _: Call) -> Reply:
        """The event loop turns; nothing behind us is asked."""
        return OK

    async def readyz(self, _: Call) -> Reply:
        """Whether new samples should come here, from what is known already: answered at once."""
        reasons = self._admission.reasons
        if not self._catalog.known:
            self._catalog.refresh_soon()
            reasons.append("no upstream has said which models it serves yet")
        readiness = replies.Readiness(not reasons, reasons)
        return json_reply(readiness, 503 if reasons else 200)

    def _add_to(self, metrics: Metrics) -> None:
        admission, catalog = self._admission, self._catalog
        metrics.gauge(
            "ready",
            "1 while /readyz is 200.",
            lambda: int(bool(catalog.known) and not admission.reasons),
        )
        metrics.labelled(
            "not_ready",
            "gauge",
            "1 for each reason for which /readyz is 503; models: no upstream has listed any yet.",
            ("reason",),
            lambda: [
                *(((source,), int(admission.objects(source))) for source in SOURCES),
                (("models",), int(not catalog.known)),
            ],
        )

    async def metrics(self, _: Call) -> Reply:
        return Reply(200, await self._metrics.exposition(), TEXT)


def _config(client: ClientSettings, journaled: bool) -> replies.ClientFlags:
    """What the SDK is told; batched polls need ids that survive a restart, or they never end."""
    batched = client.sample_use_retrieve_futures
    join = client.sample_join_sampling_session
    return replies.ClientFlags(
        client.sample_max_concurrent_requests,
        client.sample_dispatch_bytes_semaphore_size,
        client.inflight_response_bytes_semaphore_size,
        journaled and batched is not False,
        journaled if join is None else join,
    )


def _kept(metadata: dict[str, Any] | None) -> bytes | None:
    """As JSON, which takes a tenth of the objects. Raises Malformed where it is too large."""
    if metadata is None:
        return None
    encoded = protocol.encode(metadata)
    if len(encoded) > protocol.MAX_METADATA_BYTES:
        raise Malformed(
            f"user_metadata has {len(encoded)} bytes as JSON, at most {protocol.MAX_METADATA_BYTES}"
        )
    return encoded


_CLIENT_CONFIG: Final = reader(protocol.ClientConfig)
_CREATE_SESSION: Final = reader(protocol.CreateSession)
_CREATE_SAMPLING: Final = reader(protocol.CreateSamplingSession)
_HEARTBEAT: Final = reader(protocol.Heartbeat)
_FINISH: Final = reader(protocol.FinishSession)
