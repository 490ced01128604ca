"""The stand-in trainer's routes that train: every one answers a promise, fetched by polling."""

import asyncio
import hashlib
import time
from typing import Any, Final, NamedTuple

import msgspec
import zstandard
from aiohttp import web

from tests.support.trainer_sessions import read_json
from tests.support.trainer_state import Promise, Refused, Run, State
from tests.support.trainer_wire import json_output, read_json_pass, read_pass, write_output

PROTOBUF: Final = "application/x-protobuf"


def logprobs_of(lengths: list[int]) -> list[list[float]]:
    """What every pass gives: exact in float32, and different at every position."""
    return [
        [-(datum + 1) - position / 1024 for position in range(length)]
        for datum, length in enumerate(lengths)
    ]


class Command(NamedTuple):
    """A JSON request to one run."""

    body: dict[str, Any]
    run: Run
    digest: str


class RunRoutes:
    def __init__(self, state: State) -> None:
        self._state = state
        self._options = state.options

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/v1/create_model", self.create),
            web.post("/api/v1/unload_model", self.unload),
            web.post("/api/v1/get_info", self.get_info),
            web.post("/api/v1/forward_backward", self.forward_backward),
            web.post("/api/v1/forward", self.forward_backward),
            web.post("/api/v1/optim_step", self.optim_step),
            web.post("/api/v1/save_weights", self.save_weights),
            web.post("/api/v1/save_weights_for_sampler", self.save_for_sampler),
            web.post("/api/v1/load_weights", self.load_weights),
            web.post("/api/v1/retrieve_future", self.retrieve_future),
        ]

    async def create(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        if body["base_model"] not in self._options.models:
            raise Refused(400, f"no base model {body['base_model']!r}")
        rank = (body.get("lora_config") or {}).get("rank", 0)
        run = self._state.create_run(
            body["session_id"], body.get("model_seq_id", -1), body["base_model"], rank
        )
        result = {"model_id": run.model_id, "base_model": run.base_model}
        return _promised(self._state.promise(run, result), model_id=run.model_id)

    async def unload(self, request: web.Request) -> web.Response:
        run = self._state.run((await read_json(request))["model_id"])
        promise = self._state.promise(run, {"model_id": run.model_id, "type": "unload_model"})
        run.loaded = False
        return _promised(promise)

    async def get_info(self, request: web.Request) -> web.Response:
        run = self._state.run((await read_json(request))["model_id"])
        told = {
            "type": "get_info",
            "model_id": run.model_id,
            "status": "created" if run.loaded else "unloaded",
            "model_data": {"base_model": run.base_model, "model_name": run.base_model},
            "is_lora": run.rank > 0,
            "lora_rank": run.rank,
        }
        return web.json_response(told)

    async def forward_backward(self, request: web.Request) -> web.Response:
        raw = await request.read()
        encoding = request.headers.get("Content-Encoding")
        if encoding not in (None, "zstd"):
            raise Refused(415, f"Unsupported content encoding: {encoding}")
        body = zstandard.ZstdDecompressor().decompressobj().decompress(raw) if encoding else raw
        binary = request.content_type == PROTOBUF
        asked = read_pass(body) if binary else read_json_pass(msgspec.json.decode(body))
        run = self._state.run(asked.model_id)
        digest = _digest(request, body)
        promise = self._state.repeated(run, asked.seq_id, digest)
        if promise is None:
            run.passes += run.loaded and not asked.forward_only
            rows = logprobs_of(asked.lengths)
            metrics = {"tokens:sum": float(sum(asked.lengths)), "steps:max": float(run.steps)}
            promise = self._state.promise(
                run,
                json_output(rows, metrics),
                protobuf=write_output(rows, metrics),
                seq_id=asked.seq_id,
                digest=digest,
            )
        return _promised(promise)

    async def optim_step(self, request: web.Request) -> web.Response:
        asked, repeated = await self._command(request)
        if repeated is not None:
            return repeated
        asked.run.steps += asked.run.loaded
        return self._done(asked, {"metrics": {"steps:max": float(asked.run.steps)}})

    async def save_weights(self, request: web.Request) -> web.Response:
        asked, repeated = await self._command(request)
        if repeated is not None:
            return repeated
        body, run = asked.body, asked.run
        checkpoint = self._state.save(run, "weights", body.get("path") or f"{run.saves:06d}")
        result = {"path": checkpoint.path, "type": "save_weights"}
        return self._done(asked, result)

    async def save_for_sampler(self, request: web.Request) -> web.Response:
        """With a name: its path. Without: a sampling session, minted here and now."""
        asked, repeated = await self._command(request)
        if repeated is not None:
            return repeated
        body, run = asked.body, asked.run
        number, seq_id = body.get("sampling_session_seq_id"), body.get("seq_id")
        result: dict[str, Any] = {"type": "save_weights_for_sampler", "path": None}
        if body.get("path") is not None:
            saved = self._state.save(run, "sampler_weights", body["path"])
            short = f"tinker://{run.model_id}/{saved.name}"
            result["path"] = short if self._options.short_paths else saved.path
        elif number is not None and seq_id is not None:
            saved = self._state.save(run, "sampler_weights", f"ss{number}_seq{seq_id}")
            sampler = self._state.mint(run.session_id, run.base_model, saved)
            result["sampling_session_id"] = sampler.sampler_id
        else:
            raise Refused(422, "either path, or sampling_session_seq_id and seq_id")
        return self._done(asked, result)

    async def load_weights(self, request: web.Request) -> web.Response:
        """Into a run, or (SDK 0.38's create_training_client_from_state) into a new one."""
        body = await read_json(request)
        checkpoint = self._state.checkpoint(body["path"])
        source = self._state.run(checkpoint.model_id)
        if body.get("model_id") is not None:
            run = self._state.run(body["model_id"])
        else:
            # The SDK computes this id by itself.
            session_id, number = body["session_id"], body["model_seq_id"]
            run = self._state.create_run(
                session_id,
                number,
                body.get("base_model") or source.base_model,
                source.rank,
                f"{session_id}:train:{number}",
            )
        run.steps = checkpoint.steps
        result = {"type": "load_weights", "path": checkpoint.path, "model_id": run.model_id}
        asked = Command(body, run, _digest(request, await request.read()))
        return self._done(asked, result)

    async def retrieve_future(self, request: web.Request) -> web.Response:
        request_id = (await read_json(request))["request_id"]
        if not request_id.isdecimal():
            # SkyRL reads it with int(), and the error is not caught.
            return web.Response(status=500, text="Internal Server Error")
        if request_id not in self._state.promises:
            raise Refused(404, "Future not found")
        promise = self._state.promises[request_id]
        promise.polls += 1
        left_s = promise.ready_at - time.monotonic()
        if left_s > 0:
            await asyncio.sleep(min(left_s, self._options.hold_s))
        if left_s > self._options.hold_s:
            return self._pending(promise)
        if promise.failed is not None:
            raise Refused(400, promise.failed)
        if promise.protobuf is not None and PROTOBUF in request.headers.get("Accept", ""):
            return web.Response(body=promise.protobuf, content_type=PROTOBUF)
        return web.json_response(promise.result)

    # --- what they share -------------------------------------------------------------------------

    async def _command(self, request: web.Request) -> tuple[Command, web.Response | None]:
        """What is asked, and the answer where the same was asked before."""
        body = await read_json(request)
        run = self._state.run(body["model_id"])
        asked = Command(body, run, _digest(request, await request.read()))
        before = self._state.repeated(run, body.get("seq_id"), asked.digest)
        return asked, None if before is None else _promised(before)

    def _done(self, asked: Command, result: Any) -> web.Response:
        promise = self._state.promise(
            asked.run, result, seq_id=asked.body.get("seq_id"), digest=asked.digest
        )
        return _promised(promise)

    def _pending(self, promise: Promise) -> web.Response:
        if self._options.pending == "408":
            raise Refused(408, "Timeout waiting for result")
        told = {"type": "try_again", "request_id": promise.request_id, "queue_state": "active"}
        return web.json_response(told)


def _digest(request: web.Request, body: bytes) -> str:
    return hashlib.sha256(request.path.encode() + body).hexdigest()


def _promised(promise: Promise, **more: str) -> web.Response:
    told = {"future_id": promise.request_id, "status": "pending", "request_id": promise.request_id}
    return web.json_response({**told, **more})
