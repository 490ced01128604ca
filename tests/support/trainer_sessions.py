"""The stand-in trainer's routes around a session: handshake, heartbeat, finish, samplers."""

from typing import Any

import msgspec
from aiohttp import web

from tests.support.trainer_state import State


async def read_json(request: web.Request) -> dict[str, Any]:
    return msgspec.json.decode(await request.read(), type=dict[str, Any])


async def not_found(_: web.Request) -> web.Response:
    """As FastAPI answers."""
    return web.json_response({"detail": "Not Found"}, status=404)


class SessionRoutes:
    def __init__(self, state: State) -> None:
        self._state = state
        self._options = state.options

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/v1/client/config", self.client_config),
            web.post("/api/v1/client/dynamic_config", self.dynamic_config),
            web.post("/api/v1/create_session", self.create),
            web.post("/api/v1/session_heartbeat", self.heartbeat),
            web.post("/api/v1/sessions/{session}/finish", self.finish),
            web.post("/api/v1/create_sampling_session", self.create_sampler),
            web.post("/api/v1/telemetry", self.telemetry),
            web.get("/api/v1/healthz", self.healthz),
            web.get("/api/v1/get_server_capabilities", self.capabilities),
            web.get("/api/v1/sessions", self.list),
            web.get("/api/v1/sessions/{session}", self.get),
            web.get("/api/v1/samplers/{sampler}", self.get_sampler),
        ]

    async def client_config(self, _: web.Request) -> web.Response:
        flags = {"pjwt_auth_enabled": False, "proto_write_fwdbwd": True}
        return web.json_response({**flags, "proto_compress_fwdbwd": self._options.compress})

    async def dynamic_config(self, request: web.Request) -> web.Response:
        if not self._options.dynamic_config:
            return await not_found(request)
        return web.json_response({"refresh_interval_sec": 60, "trainer_flag": True})

    async def healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def capabilities(self, _: web.Request) -> web.Response:
        models = [
            {"model_name": model, "max_context_length": 32768, "trainable": True}
            for model in self._options.models
        ]
        told = {"supported_models": models, "supported_loss_fns": ["cross_entropy"]}
        return web.json_response(told)

    async def create(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        session = self._state.create_session(body.get("user_metadata") or {})
        return web.json_response({"type": "create_session", "session_id": session.session_id})

    async def heartbeat(self, request: web.Request) -> web.Response:
        self._state.heartbeat((await read_json(request))["session_id"])
        return web.json_response({"type": "session_heartbeat"})

    async def finish(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        self._state.finish(request.match_info["session"], body["reason"]["type"])
        return web.json_response(None)

    async def list(self, _: web.Request) -> web.Response:
        return web.json_response({"sessions": [*self._state.sessions]})

    async def get(self, request: web.Request) -> web.Response:
        session = self._state.session(request.match_info["session"])
        ours, runs, samplers = session.session_id, self._state.runs, self._state.samplers
        told = {
            "training_run_ids": [id_ for id_, run in runs.items() if run.session_id == ours],
            "sampler_ids": [id_ for id_, one in samplers.items() if one.session_id == ours],
            "user_metadata": session.user_metadata,
        }
        return web.json_response(told)

    async def create_sampler(self, request: web.Request) -> web.Response:
        """Served as SkyRL does, though samples on it are not."""
        body = await read_json(request)
        session = self._state.session(body["session_id"])
        if body.get("model_path") is not None:
            checkpoint = self._state.checkpoint(body["model_path"])
            base_model = self._state.run(checkpoint.model_id).base_model
        else:
            checkpoint, base_model = None, body["base_model"]
        sampler = self._state.mint(session.session_id, base_model, checkpoint)
        told = {"type": "create_sampling_session", "sampling_session_id": sampler.sampler_id}
        return web.json_response(told)

    async def get_sampler(self, request: web.Request) -> web.Response:
        sampler = self._state.sampler(request.match_info["sampler"])
        told = {
            "sampler_id": sampler.sampler_id,
            "base_model": sampler.base_model,
            "model_path": sampler.model_path,
        }
        return web.json_response(told)

    async def telemetry(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "accepted"})
