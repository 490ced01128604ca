"""The stand-in trainer's routes that list and show what was trained."""

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from tests.support import trainer_seen
from tests.support.trainer_sessions import read_json
from tests.support.trainer_state import Checkpoint, Run, State

_RUN = "/api/v1/training_runs/{run}"
_CHECKPOINT = _RUN + "/checkpoints/{name:.+}"


class RestRoutes:
    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/training_runs", self.list_runs),
            web.get(_RUN, self.get_run),
            web.get(_RUN + "/checkpoints", self.list_checkpoints),
            web.get("/api/v1/checkpoints", self.list_checkpoints),
            web.get(_CHECKPOINT + "/archive", self.archive),
            web.get(_CHECKPOINT + "/download", trainer_seen.stream),
            web.delete(_CHECKPOINT, self.delete),
            web.put(_CHECKPOINT + "/ttl", self.set_ttl),
            web.post("/api/v1/weights_info", self.weights_info),
        ]

    async def list_runs(self, request: web.Request) -> web.Response:
        runs = [self._shown(run) for run in self._state.runs.values()]
        page, cursor = _page(request, runs)
        return web.json_response({"training_runs": page, "cursor": cursor})

    async def get_run(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(self._state.run(request.match_info["run"])))

    async def list_checkpoints(self, request: web.Request) -> web.Response:
        """Of one run, or of all."""
        run = request.match_info.get("run")
        saved = self._state.saved(None if run is None else self._state.run(run).model_id)
        page, cursor = _page(request, [one.shown() for one in saved])
        return web.json_response({"checkpoints": page, "cursor": cursor})

    async def archive(self, request: web.Request) -> web.Response:
        """302 to a URL made from the Host header, as SkyRL does."""
        self._named(request)
        where = (
            f"{request.scheme}://{request.host}{request.raw_path.removesuffix('archive')}download"
        )
        headers = {"Location": where, "Expires": "Fri, 01 Jan 2100 00:00:00 GMT"}
        return web.Response(status=302, headers=headers)

    async def delete(self, request: web.Request) -> web.Response:
        del self._state.checkpoints[self._named(request).path]
        return web.Response(status=204)

    async def set_ttl(self, request: web.Request) -> web.Response:
        self._named(request)
        return web.json_response(None)

    async def weights_info(self, request: web.Request) -> web.Response:
        checkpoint = self._state.checkpoint((await read_json(request))["tinker_path"])
        run = self._state.run(checkpoint.model_id)
        told = {"base_model": run.base_model, "is_lora": run.rank > 0, "lora_rank": run.rank}
        return web.json_response(told)

    def _named(self, request: web.Request) -> Checkpoint:
        run, name = request.match_info["run"], request.match_info["name"]
        return self._state.checkpoint(f"tinker://{run}/{name}")

    def _shown(self, run: Run) -> dict[str, Any]:
        saved = [one.shown() for one in self._state.saved(run.model_id)]
        last = {
            kind: next((one for one in saved if one["checkpoint_type"] == kind), None)
            for kind in ("training", "sampler")
        }
        return {
            "training_run_id": run.model_id,
            "base_model": run.base_model,
            "model_owner": "default",
            "is_lora": run.rank > 0,
            "lora_rank": run.rank,
            "last_request_time": datetime.now(UTC).isoformat(),
            "last_checkpoint": last["training"],
            "last_sampler_checkpoint": last["sampler"],
        }


def _page(request: web.Request, all_of_them: list[Any]) -> tuple[list[Any], dict[str, int]]:
    limit = int(request.query.get("limit", "100"))
    offset = int(request.query.get("offset", "0"))
    cursor = {"offset": offset, "limit": limit, "total_count": len(all_of_them)}
    return all_of_them[offset : offset + limit], cursor
