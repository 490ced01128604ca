"""Every look-up of the real SDK against the gateway on a socket, without a trainer.

| RestClient | gets |
|---|---|
| get_server_capabilities | the base models |
| list_training_runs, get_training_run, get_training_run_by_tinker_path | runs of the adapters |
| list_checkpoints, list_user_checkpoints | the adapters |
| get_weights_info_by_tinker_path | base model and is_lora |
| list_sessions, get_session, get_sampler | this gateway's own |
| whoami | raises without a request: keys are no JWTs here |
| all else | UnprocessableEntityError that names the call |
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import Start
from tests.support.processes import Process, Served, stand_in

pytestmark = pytest.mark.sdk

PROGRAM = Path(__file__).with_name("rest_program.py")
BASE = "Qwen/Qwen3-8B"
RUN = "3f0e-11:train:0"
FIRST, LAST = f"tinker://{RUN}/sampler_weights/000010", f"tinker://{RUN}/sampler_weights/000020"
TABLED = "tinker://my-run/weights/best"
UNKNOWN = "tinker://my-run/sampler_weights/never"
TOKENS = {"type": "encoded_text", "tokens": [5, 6, 7]}
# A refusal is worth nothing if the SDK repeats it for minutes.
AT_ONCE_S = 5.0

READS = {
    "get_server_capabilities",
    "get_training_run",
    "get_training_run_by_tinker_path",
    "get_weights_info_by_tinker_path",
    "list_training_runs",
    "list_checkpoints",
    "list_user_checkpoints",
    "get_session",
    "list_sessions",
    "get_sampler",
}
REFUSED = {
    "get_external_weights_urls": ["tinker://my-run/external_weights/best"],
    "delete_checkpoint": ["my-run", "weights/best"],
    "delete_checkpoint_from_tinker_path": [TABLED],
    "publish_checkpoint_from_tinker_path": [TABLED],
    "unpublish_checkpoint_from_tinker_path": [TABLED],
    "set_checkpoint_ttl_from_tinker_path": [TABLED, 60],
    "copy_weights": [TABLED, "project"],
    "assign_session_project": ["session-x", "project"],
    "export_session_trace": ["session-x"],
    "search_sessions": [{"type": "SessionSearchRequest"}],
    "get_audit_log": [],
    "get_billing_usage": ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"],
    "get_current_checkpoint_storage_usage": [],
}
# What older releases had, and what says nothing to a server.
OTHERS = {"get_checkpoint_archive_url", "get_checkpoint_archive_url_from_tinker_path"}
LOCAL = {"get_telemetry", "holder", "whoami"}


class Sdk:
    """Runs the program once per batch of calls."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.methods: set[str] = set()

    def __call__(self, *calls: list[Any]) -> list[Any]:
        """The results, in the order of the calls."""
        environ = {
            "TINKER_BASE_URL": self._served.url,
            "TINKER_API_KEY": "tml-test",
            "TINKER_TELEMETRY": "0",
        }
        started = Process([sys.executable, str(PROGRAM)], environ, stdin=subprocess.PIPE)
        try:
            started.stdin.write(json.dumps(calls).encode())
            started.stdin.close()
            assert started.wait(60) == 0, started.story()
            told = json.loads(started.stdout)
        finally:
            started.close()
        self.methods = set(told["methods"])
        answers: list[Any] = told["told"]
        return answers

    def rest(self, *calls: list[Any]) -> list[Any]:
        """What RestClient's methods return."""
        answers = self(*(["rest", method, arguments] for method, arguments in calls))
        assert all("result" in answer for answer in answers), answers
        return [answer["result"] for answer in answers]


@pytest.fixture(scope="module")
def gateway(start: Start) -> Iterator[Served]:
    loras = ["--lora", f"{RUN}_000010", "--lora", f"{RUN}_000020", "--lora", "best"]
    with (
        stand_in("--model", BASE, *loras) as url,
        start(url, models__adapters=f"{TABLED}=best") as served,
    ):
        yield served


@pytest.fixture(scope="module")
def sdk(gateway: Served) -> Sdk:
    return Sdk(gateway)


def timeless(run: dict[str, Any]) -> dict[str, Any]:
    """Without when it was first seen, of which each gateway has its own idea."""
    times = {"last_request_time", "time"}
    return {
        name: timeless(value) if isinstance(value, dict) else value
        for name, value in run.items()
        if name not in times
    }


def test_runs_and_checkpoints_are_read(sdk: Sdk) -> None:
    listed, run, by_path, of_run, all_of_them, page = sdk.rest(
        ["list_training_runs", []],
        ["get_training_run", [RUN]],
        ["get_training_run_by_tinker_path", [TABLED]],
        ["list_checkpoints", [RUN]],
        ["list_user_checkpoints", []],
        ["list_user_checkpoints", [1, 1]],
    )
    assert [one["training_run_id"] for one in listed["training_runs"]] == ["my-run", RUN]
    assert listed["cursor"] == {"offset": 0, "limit": 20, "total_count": 2}
    assert timeless(run) == timeless(listed["training_runs"][1])
    assert (run["base_model"], run["is_lora"], run["lora_rank"]) == (BASE, True, None)
    assert run["last_sampler_checkpoint"]["tinker_path"] == LAST
    assert by_path["training_run_id"] == "my-run"
    assert by_path["last_checkpoint"]["checkpoint_type"] == "training"
    assert [one["tinker_path"] for one in of_run["checkpoints"]] == [LAST, FIRST]
    assert [one["tinker_path"] for one in all_of_them["checkpoints"]] == [TABLED, LAST, FIRST]
    assert [one["tinker_path"] for one in page["checkpoints"]] == [LAST]
    assert page["cursor"] == {"offset": 1, "limit": 1, "total_count": 3}


def test_weights_and_capabilities_are_read(sdk: Sdk) -> None:
    info, capabilities = sdk.rest(
        ["get_weights_info_by_tinker_path", [FIRST]], ["get_server_capabilities", []]
    )
    assert (info["base_model"], info["is_lora"]) == (BASE, True)
    [model] = capabilities["supported_models"]
    assert (model["model_name"], model["max_context_length"]) == (BASE, 65_536)
    # SDKs below 0.26 know neither.
    assert (model.get("trainable", False), model.get("sampleable", True)) == (False, True)


def test_a_script_looks_up_and_then_samples_by_path(sdk: Sdk) -> None:
    """What evaluations do: find the last checkpoint, make a sampler of it, sample."""
    calls: list[list[Any]] = [
        ["service", "create_sampling_client", [LAST], "sampler"],
        ["sampler", "get_base_model", []],
        ["sampler", "compute_logprobs", [{"type": "ModelInput", "chunks": [TOKENS]}]],
        ["rest", "list_sessions", []],
    ]
    made, base_model, logprobs, sessions = sdk(*calls)
    assert "error" not in made, made
    assert base_model["result"] == BASE
    assert logprobs["result"][0] is None
    assert len(logprobs["result"]) == 3
    session = sessions["result"]["sessions"][0]
    [shown] = sdk.rest(["get_session", [session]])
    assert shown["training_run_ids"] == []
    [sampler_id] = shown["sampler_ids"]
    [sampler] = sdk.rest(["get_sampler", [sampler_id]])
    assert sampler == {"sampler_id": sampler_id, "base_model": BASE, "model_path": LAST}


def test_what_is_not_there_is_an_error_at_once(sdk: Sdk) -> None:
    answers = sdk(
        ["rest", "get_training_run", ["nobody"]],
        ["rest", "get_weights_info_by_tinker_path", [UNKNOWN]],
        ["rest", "get_session", ["session-x"]],
        ["rest", "get_sampler", ["sampler-x"]],
        ["service", "create_sampling_client", [UNKNOWN]],
    )
    kinds = [(answer["error"], answer["status"]) for answer in answers]
    assert kinds == [("NotFoundError", 404)] * 4 + [("BadRequestError", 400)]
    assert "'my-run_never'" in answers[1]["text"]
    assert f"model_path {UNKNOWN} needs the adapter 'my-run_never'" in answers[4]["text"]
    assert all(answer["seconds"] < AT_ONCE_S for answer in answers)


def test_what_needs_a_trainer_is_refused_by_name_at_once(sdk: Sdk) -> None:
    calls = [["rest", method, arguments] for method, arguments in REFUSED.items()]
    for call, answer in zip(calls, sdk(*calls), strict=True):
        if call[1] in sdk.methods:
            assert answer["error"] == "UnprocessableEntityError", (call, answer)
            assert answer["status"] == 422
            assert "this gateway samples only; " in answer["text"]
            assert answer["seconds"] < AT_ONCE_S


def test_training_is_refused_by_name_at_once(sdk: Sdk) -> None:
    created, resumed = sdk(
        ["service", "create_lora_training_client", [BASE, 8]],
        ["service", "create_training_client_from_state", [TABLED]],
    )
    refusal = "this gateway samples only; {} needs a trainer (training.url)"
    assert created["error"] == "UnprocessableEntityError", created
    assert refusal.format("create_model") in created["text"]
    assert created["seconds"] < AT_ONCE_S
    if resumed["error"] != "ValidationError":  # SDK 0.30 stops at the unknown rank
        assert resumed["error"] == "UnprocessableEntityError", resumed
        assert refusal.format("load_weights") in resumed["text"]
    assert resumed["seconds"] < AT_ONCE_S


def test_no_method_of_the_rest_client_was_overlooked(sdk: Sdk) -> None:
    [identity] = sdk(["rest", "whoami", []])
    known = READS | set(REFUSED) | OTHERS | LOCAL
    assert {name for name in sdk.methods if not name.endswith("_async")} <= known
    if "whoami" in sdk.methods:
        assert identity["error"] == "RuntimeError"
        assert "whoami requires JWT auth" in identity["text"]
