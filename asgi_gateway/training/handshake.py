"""The handshake where a trainer owns the sessions: its ids are adopted, its answers are merged."""

import asyncio
import contextlib
from typing import Any, Final

import msgspec

from asgi_gateway import protocol
from asgi_gateway.access.models import require
from asgi_gateway.asgi import Call, Reply, json_reply
from asgi_gateway.errors import ForeignId, Gone, Malformed, NotFound, Unready
from asgi_gateway.handshake import HandshakeHandlers
from asgi_gateway.protocol import reader
from asgi_gateway.sessions import SamplingSession, Session
from asgi_gateway.training.proxy import Answer
from asgi_gateway.training.trainer import Trainer
from asgi_gateway.upstream.catalog import Model


class TrainerHandshake(HandshakeHandlers):
    """Sessions live at the trainer, which unloads the runs of a session that falls silent."""

    def __init__(self, trainer: Trainer, **parts: Any) -> None:
        super().__init__(**parts)
        self._trainer = trainer
        self._adopting: dict[tuple[str, str], asyncio.Task[SamplingSession]] = {}

    async def create_session(self, call: Call) -> Reply:
        _CREATE_SESSION(call.body)
        answer = await self._trainer.post("create_session", msgspec.Raw(call.body), call.scope)
        if answer.status == 200:
            session_id = _MADE(answer.body).session_id
            self._sessions.create(call.caller.name, self._clock.now(), session_id)
        return reply_of(answer)

    async def _session(self, session_id: str, call: Call) -> Session:
        """One of ours, or one that the trainer made and that nobody told us of."""
        try:
            return self._sessions.find(session_id, call.caller.name)
        except NotFound:
            if self._sessions.is_anothers(session_id, call.caller.name):
                raise
            if not await self._trainer.knows_session(session_id, call.scope):
                raise
            return self._sessions.create(call.caller.name, self._clock.now(), session_id)

    async def _model(self, request: protocol.CreateSamplingSession, call: Call) -> Model:
        """As without a trainer; an adapter that no upstream lists yet may be one that it saved."""
        path = request.model_path
        if path is None or self._catalog.lists(path):
            return await super()._model(request, call)
        base_model = await self._trainer.base_of(path, call.scope)
        if base_model is None:
            return await super()._model(request, call)
        return await self._catalog.resolve(base_model, path, trusted=True)

    async def session_heartbeat(self, call: Call) -> Reply:
        session = await self._session(_HEARTBEAT(call.body).session_id, call)
        self._sessions.alive(session, self._clock.now())
        self._trainer.beat(session.session_id, call.scope)
        return json_reply({"type": "session_heartbeat"})

    async def sampler(self, call: Call) -> Reply:
        """One that the trainer minted and that nobody has sampled from yet is the trainer's."""
        try:
            return await super().sampler(call)
        except NotFound as error:
            raise self._perhaps_foreign(error, call) from None

    def _perhaps_foreign(self, error: NotFound, call: Call) -> NotFound:
        """The trainer is asked about ids that nobody has used here, not about another caller's."""
        anothers = self._sessions.is_anothers(call.tail, call.caller.name)
        return error if anothers else ForeignId(str(error))

    async def finish_session(self, call: Call) -> Reply:
        """Ours and the trainer's; a session that we have not heard of is the trainer's alone."""
        try:
            reply = await super().finish_session(call)
        except NotFound as error:
            raise self._perhaps_foreign(error, call) from None
        for sampler_id in await self._trainer.samplers_of(call.tail, call.scope):
            # One that it minted has a session of its own here, called as it is.
            with contextlib.suppress(NotFound, Gone):
                await self._end(self._sessions.find(sampler_id, call.caller.name))
        path = f"sessions/{call.tail}/finish"
        await self._trainer.post(path, msgspec.Raw(call.body), call.scope)
        self._trainer.forget_session(call.tail)
        return reply

    async def client_config(self, call: Call) -> Reply:
        return await self._merged("client/config", await super().client_config(call), call)

    async def dynamic_config(self, call: Call) -> Reply:
        return await self._merged("client/dynamic_config", await super().dynamic_config(call), call)

    async def _merged(self, route: str, ours: Reply, call: Call) -> Reply:
        """The trainer's flags, with ours for everything about sampling."""
        theirs = await self._trainer.config(route, msgspec.Raw(call.body), call.scope)
        return json_reply(theirs | msgspec.json.decode(ours.body))

    async def server_capabilities(self, call: Call) -> Reply:
        """Models of both; one that both list is trainable there and sampleable here."""
        merged: dict[str, dict[str, Any]] = {}
        for model in await self._trainer.models(call.scope):
            name = model.get("model_name")
            if isinstance(name, str):
                merged[name] = {"sampleable": False, "trainable": True} | model
        try:
            ours = msgspec.json.decode((await super().server_capabilities(call)).body)
        except Unready:
            if not merged:
                raise
            ours = {"supported_models": []}
        for model in ours["supported_models"]:
            theirs = merged.get(model["model_name"], {})
            trainable = bool(theirs.get("trainable", False))
            merged[model["model_name"]] = theirs | model | {"trainable": trainable}
        return json_reply({"supported_models": list(merged.values())})

    async def save_weights_for_sampler(self, call: Call) -> Reply:
        name = call.caller.name
        return reply_of(await self._trainer.save_weights(call.body, call.scope, name))

    async def minted(self, sampling_session_id: str, call: Call) -> SamplingSession:
        """Adopt a sampler that the trainer minted, with the weights of its save.

        Its client begins with many samples at once, which ask the trainer once. Whoever samples
        from it first has it: to other callers it is unknown from then on.

        Raises:
            NotFound: the trainer does not know it either, or it is another caller's.
            Malformed: it knows it, and not which weights it has.
            Forbidden: the caller's key may not use these weights.
        """
        key = (sampling_session_id, call.caller.name)
        adopting = self._adopting.get(key)
        if adopting is None:
            adopting = asyncio.create_task(self._adopt(sampling_session_id, call))
            self._adopting[key] = adopting
            adopting.add_done_callback(lambda _: self._adopting.pop(key))
        await asyncio.wait([adopting])
        return adopting.result()

    async def _adopt(self, sampling_session_id: str, call: Call) -> SamplingSession:
        name = call.caller.name
        known = None
        if not self._sessions.is_anothers(sampling_session_id, name):
            known = await self._trainer.sampler(sampling_session_id, call.scope, name)
        if known is None:
            raise NotFound("unknown sampling_session_id")
        if known.model_path is None and known.base_model is None:
            raise Malformed("the trainer does not say which weights this sampler has")
        require(call.caller, known.base_model, known.model_path)
        model = await self._catalog.resolve(known.base_model, known.model_path, trusted=True)
        if self._sessions.is_anothers(sampling_session_id, name):  # meanwhile
            raise NotFound("unknown sampling_session_id")
        # A session of its own: the trainer does not say here to which of its sessions it belongs.
        session = self._sessions.create(name, self._clock.now(), sampling_session_id)
        return self._sessions.create_sampling(session, 0, model, sampling_session_id)


class _Made(msgspec.Struct):
    session_id: str


def reply_of(answer: Answer) -> Reply:
    """The trainer's answer as ours, its body untouched."""
    content_type = answer.headers.get("content-type", "application/json").encode("latin-1")
    passed = tuple(
        (name.encode(), answer.headers[name].encode("latin-1"))
        for name in ("retry-after", "x-should-retry")
        if name in answer.headers
    )
    return Reply(answer.status, answer.body, content_type, passed)


_CREATE_SESSION: Final = reader(protocol.CreateSession)
_HEARTBEAT: Final = reader(protocol.Heartbeat)
_MADE: Final = reader(_Made)
