"""The stand-in trainer against the real SDK, with nothing between them.

What it proves is that the stand-in may be believed where a gateway stands in between, and what the
SDK sends when it saves weights.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
import zstandard

from tests.contract.trainer_program import LENGTHS
from tests.support.processes import process
from tests.support.trainer import Served, Trainer, trainer
from tests.support.trainer_runs import logprobs_of
from tests.support.trainer_seen import stream_piece
from tests.support.trainer_state import Options
from tests.support.wire import Wire, wire

PROGRAM = Path(__file__).with_name("trainer_program.py")
HELD = ["--work-s", "0.25", "--hold-s", "0.1"]
Run: TypeAlias = tuple[dict[str, Any], Any]


def run_program(served: Served) -> dict[str, Any]:
    environ = {"TINKER_BASE_URL": served.url, "TINKER_API_KEY": "tml-test"}
    with process([sys.executable, str(PROGRAM)], environ) as started:
        assert started.wait(60) == 0, started.story()
        told: dict[str, Any] = json.loads(started.stdout)
        return told


@pytest.fixture(scope="module")
def plain() -> Run:
    """What the program told and the stand-in saw, with every option left at its default."""
    return run_with()


def run_with(*flags: str) -> Run:
    with trainer(*flags) as served:
        return run_program(served), served.state()


def sent(state: Any, path: str) -> list[dict[str, Any]]:
    """The requests to one path, with their JSON bodies decoded and header names in lower case."""
    return [
        {
            **request,
            "json": json.loads(request.get("body", "null")),
            "headers": {name.lower(): value for name, value in request["headers"]},
        }
        for request in state["requests"]
        if request["target"] == f"/api/v1/{path}"
    ]


@pytest.mark.sdk
@pytest.mark.parametrize(
    "flags", [[], [*HELD, "--compress"], [*HELD, "--pending", "try_again", "--dynamic-config"]]
)
def test_the_sdk_trains_and_saves(flags: list[str], plain: Run) -> None:
    told, state = run_with(*flags) if flags else plain
    first, second = told["runs"]["first"], told["runs"]["second"]
    (session_id,) = state["sessions"]
    assert told["info"] == {"name": "stand-in", "rank": 8}
    assert told["steps"]["second"] == [
        {
            "logprobs": logprobs_of(LENGTHS),
            "metrics": {"tokens:sum": 5.0, "steps:max": float(step)},
            "stepped": {"steps:max": step + 1.0},
        }
        for step in range(2)
    ]
    assert told["named"] == f"tinker://{first}/sampler_weights/step-1"
    assert told["state"] == f"tinker://{second}/weights/state-2"
    assert told["runs"]["resumed"] == f"{session_id}:train:2"
    assert {one["base_model"] for one in told["samplers"].values()} == {"stand-in"}
    samplers = {name: state["samplers"][one["id"]] for name, one in told["samplers"].items()}
    assert {name: one["steps"] for name, one in samplers.items()} == {
        "by_path": 1,
        "snapshot": 1,
        "inflight": 2,
    }
    assert told["model_path"] == samplers["snapshot"]["model_path"]
    assert told["sampled"] == "NotFoundError"
    assert told["checkpoints"] == [samplers["snapshot"]["model_path"], told["named"]]
    assert told["after_delete"] == told["checkpoints"][:1]
    assert set(told["everybodys"]) > set(told["checkpoints"])
    assert told["listed"] == [first, second, told["runs"]["resumed"]]
    assert (told["lora_rank"], told["trainable"]) == (4, [True])
    assert state["sessions"][session_id]["finished"] == "success"
    polls = sum(state["promises"].values())
    assert polls > len(state["promises"]) if flags else polls == len(state["promises"])
    encodings = {one["headers"].get("content-encoding") for one in sent(state, "forward_backward")}
    assert encodings == ({"zstd"} if "--compress" in flags else {None})


@pytest.mark.sdk
def test_what_the_sdk_sends_when_it_saves(plain: Run) -> None:
    """The facts that a gateway in between has to rely on."""
    told, state = plain
    first, second = told["runs"]["first"], told["runs"]["second"]
    by_path, snapshot, inflight = sent(state, "save_weights_for_sampler")
    kind = {"type": "save_weights_for_sampler", "kind": "snapshot"}
    assert by_path["json"] == {"model_id": first, "path": "step-1", "seq_id": 3, **kind}
    # Minted samplers count in the same sequence as create_sampling_session, which took 0.
    number = "sampling_session_seq_id"
    assert snapshot["json"] == {"model_id": first, "seq_id": 4, number: 1, **kind}
    kind["kind"] = "inflight"
    assert inflight["json"] == {"model_id": second, "seq_id": 5, number: 2, **kind}
    (created,) = sent(state, "create_sampling_session")
    assert created["json"]["sampling_session_seq_id"] == 0
    assert created["json"]["model_path"] == told["named"]
    # A sampler made by path is looked up; one that was minted is not, until it is asked for.
    looked_up = [key for key in state["counts"] if "/samplers/" in key]
    assert looked_up == [
        f"GET /api/v1/samplers/{told['samplers'][name]['id']}" for name in ("by_path", "snapshot")
    ]
    (sample,) = sent(state, "asample")
    assert sample["json"]["sampling_session_id"] == told["samplers"]["snapshot"]["id"]
    assert sample["json"]["seq_id"] == 0
    polls = [
        poll["headers"]
        for poll in sent(state, "retrieve_future")
        if poll["headers"]["x-sdk-method"].endswith("save_weights_and_get_sampling_client")
    ]
    assert [poll["x-tinker-request-type"] for poll in polls] == ["SaveWeightsForSampler"] * 2
    assert {poll["accept"] for poll in polls} == {"application/json"}


# --- the stand-in by itself ----------------------------------------------------------------------


async def post(connection: Wire, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    answer = await connection.ask("POST", f"/api/v1/{path}", body, headers)
    return answer.status, answer.json()


async def made(connection: Wire) -> tuple[str, str]:
    """A session and a run of it."""
    _, session = await post(connection, "create_session", {"tags": [], "sdk_version": "0"})
    body = {"base_model": "stand-in", "lora_config": {"rank": 8}, "model_seq_id": 0}
    status, run = await post(connection, "create_model", {**session, **body})
    assert status == 200
    return session["session_id"], run["model_id"]


def port_of(running: Trainer) -> int:
    return int(running.url.rpartition(":")[2])


async def test_a_session_that_it_did_not_make_is_refused() -> None:
    async with Trainer().running() as running, wire(port_of(running)) as connection:
        body = {"session_id": "session_of_ours", "base_model": "stand-in", "model_seq_id": 0}
        refused = (404, {"detail": "Session not found"})
        assert await post(connection, "create_model", body) == refused
        assert await post(connection, "session_heartbeat", body) == refused
        assert await post(connection, "sessions/ours/finish", {"reason": {"type": "x"}}) == refused


async def test_ids_that_it_did_not_give() -> None:
    async with Trainer().running() as running, wire(port_of(running)) as connection:
        assert (await post(connection, "retrieve_future", {"request_id": "99"}))[0] == 404
        ours = await connection.ask("POST", "/api/v1/retrieve_future", {"request_id": "g-1-abc"})
        assert ours.status == 500
        assert (await post(connection, "asample", {}))[0] == 404


async def test_a_silent_session_loses_its_runs() -> None:
    options = Options(silence_s=0.2, work_s=0.0)
    async with Trainer(options).running() as running, wire(port_of(running)) as connection:
        session_id, model_id = await made(connection)
        session = running.state.sessions[session_id]
        step = {"model_id": model_id, "seq_id": 1, "adam_params": {}}
        session.heard_at = time.monotonic() - 0.1
        await post(connection, "session_heartbeat", {"session_id": session_id})
        session.heard_at -= 0.1
        _, promise = await post(connection, "optim_step", step)
        assert (await post(connection, "retrieve_future", promise))[0] == 200
        session.heard_at -= 0.2
        await post(connection, "session_heartbeat", {"session_id": session_id})
        _, promise = await post(connection, "optim_step", {**step, "seq_id": 2})
        refused = (400, {"detail": f"Model {model_id} not loaded"})
        assert await post(connection, "retrieve_future", promise) == refused
        assert not running.state.runs[model_id].loaded
        assert running.state.runs[model_id].steps == 1


async def test_a_repeated_request_runs_once() -> None:
    async with Trainer().running() as running, wire(port_of(running)) as connection:
        _, model_id = await made(connection)
        step = {"model_id": model_id, "seq_id": 1, "adam_params": {}}
        promised = await post(connection, "optim_step", step)
        assert await post(connection, "optim_step", step) == promised
        assert (await post(connection, "optim_step", {**step, "other": 1}))[0] == 409
        assert running.state.runs[model_id].steps == 1


async def test_forward_backward_of_older_sdks_is_json() -> None:
    options = Options(work_s=0.0)
    async with Trainer(options).running() as running, wire(port_of(running)) as connection:
        _, model_id = await made(connection)
        data = [{"model_input": {}, "loss_fn_inputs": {"target_tokens": {"data": [1, 2]}}}]
        given = {"data": data, "loss_fn": "cross_entropy"}
        names = {"forward_backward": "forward_backward_input", "forward": "forward_input"}
        for path, name in names.items():
            _, promise = await post(connection, path, {"model_id": model_id, name: given})
            _, result = await post(connection, "retrieve_future", promise)
            assert result["loss_fn_outputs"][0]["logprobs"]["data"] == logprobs_of([2])[0]
        assert running.state.runs[model_id].passes == 1


async def test_named_saves_may_have_the_short_path() -> None:
    options = Options(short_paths=True, work_s=0.0)
    async with Trainer(options).running() as running, wire(port_of(running)) as connection:
        session_id, model_id = await made(connection)
        save = {"model_id": model_id, "path": "a"}
        _, promise = await post(connection, "save_weights_for_sampler", save)
        _, result = await post(connection, "retrieve_future", promise)
        assert result["path"] == f"tinker://{model_id}/a"
        asked = {"session_id": session_id, "model_path": result["path"]}
        _, sampler = await post(connection, "create_sampling_session", asked)
        shown = await connection.ask("GET", f"/api/v1/samplers/{sampler['sampling_session_id']}")
        assert shown.json()["model_path"] == f"tinker://{model_id}/sampler_weights/a"


async def test_archives_redirect_and_downloads_stream() -> None:
    options = Options(work_s=0.0)
    async with Trainer(options).running() as running, wire(port_of(running)) as connection:
        _, model_id = await made(connection)
        await post(connection, "save_weights", {"model_id": model_id, "path": "a"})
        below = f"/api/v1/training_runs/{model_id}/checkpoints/weights%2Fa"
        answer = await connection.ask("GET", f"{below}/archive")
        assert answer.status == 302
        assert answer.headers[b"location"] == f"http://gateway{below}/download".encode()
        answer = await connection.ask("GET", f"{below}/download?pieces=3&length=1")
        assert answer.body == b"".join(stream_piece(number) for number in range(3))


async def test_what_arrived_can_be_compared_byte_for_byte() -> None:
    async with Trainer().running() as running, wire(port_of(running)) as connection:
        target = "/debug/echo/a%2Fb//c?q=%2F&q=+"
        body = zstandard.compress(b"x" * 100)
        headers = {"X-Case": "Kept", "Content-Encoding": "zstd"}
        echoed = (await connection.ask("PUT", target, body, headers)).json()
        assert (echoed["method"], echoed["target"], echoed["length"]) == ("PUT", target, len(body))
        assert ["X-Case", "Kept"] in echoed["headers"]
        unknown = "/api/v1/un%2Fknown?x=1"
        assert (await connection.ask("POST", unknown, body, headers)).status == 404
        state = (await connection.ask("GET", "/debug/state")).json()
        (seen,) = state["requests"]
        assert (seen["target"], seen["sha256"]) == (unknown, echoed["sha256"])
        assert state["counts"] == {"POST /api/v1/un%2Fknown": 1}
        assert msgspec.json.encode(state)
