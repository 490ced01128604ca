"""A verdict about every public method of the newest SDK, called without a trainer.

They are the second table of docs/sdk-support.md; a method that is not listed here fails.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.sdk_support import CLASSES, public
from tests.contract.sdk import Sdk, Traffic, sdk_process
from tests.contract.sdks import install
from tests.contract.sdks.matrix import combinations
from tests.support.processes import Served, stand_in, under

pytestmark = pytest.mark.matrix

PROGRAM = Path(__file__).with_name("methods_program.py")
BASE = "Qwen/Qwen3-8B"
PATH = "tinker://my-run/weights/best"
AT_ONCE_S = 5.0

WORKS, LOCAL, TRAINER = "works", "works in the client", "needs a trainer"
NOT_OFFERED = "refused: {} is not offered"
SAMPLE = ["$prompt", 1, "$params"]
USAGE = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]
BACKGROUND = ("session_heartbeat", "telemetry", "client/config", "client/dynamic_config")

# What comes of a method, and its arguments; `_async` forms take and give the same.
EXPECTED: dict[str, dict[str, tuple[str, Any]]] = {
    "SamplingClient": {
        "compute_logprobs": (WORKS, ["$prompt"]),
        "create": (WORKS, {"holder": "$holder", "base_model": BASE}),
        "from_sampler_handle": (LOCAL, ["$handle"]),
        "get_base_model": (LOCAL, []),
        "get_sampler_handle": (LOCAL, []),
        "get_telemetry": (LOCAL, []),
        "get_tokenizer": (LOCAL, []),
        "on_queue_state_change": (LOCAL, ["$active", None]),
        "sample": (WORKS, SAMPLE),
    },
    "ServiceClient": {
        "close": (WORKS, ["success"]),
        "copy_weights": (TRAINER, [PATH]),
        # Traced with torch, and of use to a TrainingClient only.
        "create_custom_loss": (TRAINER, None),
        "create_lora_training_client": (TRAINER, [BASE, 8]),
        "create_rest_client": (LOCAL, []),
        "create_sampling_client": (WORKS, [PATH]),
        "create_training_client_from_state": (TRAINER, [PATH]),
        "create_training_client_from_state_with_optimizer": (TRAINER, [PATH]),
        "get_console_url": (LOCAL, []),
        "get_server_capabilities": (WORKS, []),
        "get_telemetry": (LOCAL, []),
        "holder": (LOCAL, []),
    },
    "RestClient": {
        "assign_session_project": (
            NOT_OFFERED.format("moving a session to a project"),
            ["$session", "project"],
        ),
        "copy_weights": (TRAINER, [PATH, "project"]),
        "delete_checkpoint": (TRAINER, ["my-run", "weights/best"]),
        "delete_checkpoint_from_tinker_path": (TRAINER, [PATH]),
        "export_session_trace": (NOT_OFFERED.format("exporting a session's trace"), ["$session"]),
        "get_audit_log": (NOT_OFFERED.format("the audit log"), []),
        "get_billing_usage": (NOT_OFFERED.format("billing"), USAGE),
        "get_current_checkpoint_storage_usage": (
            NOT_OFFERED.format("the billing of checkpoints"),
            [],
        ),
        "get_external_weights_urls": (TRAINER, ["tinker://my-run/external_weights/best"]),
        "get_sampler": (WORKS, ["$sampler"]),
        "get_server_capabilities": (WORKS, []),
        "get_session": (WORKS, ["$session"]),
        "get_telemetry": (LOCAL, []),
        "get_training_run": (WORKS, ["my-run"]),
        "get_training_run_by_tinker_path": (WORKS, [PATH]),
        "get_weights_info_by_tinker_path": (WORKS, [PATH]),
        "list_checkpoints": (WORKS, ["my-run"]),
        "list_sessions": (WORKS, []),
        "list_training_runs": (WORKS, []),
        "list_user_checkpoints": (WORKS, []),
        "publish_checkpoint_from_tinker_path": (TRAINER, [PATH]),
        "search_sessions": (NOT_OFFERED.format("searching sessions"), ["$search"]),
        "set_checkpoint_ttl_from_tinker_path": (TRAINER, [PATH, 60]),
        "unpublish_checkpoint_from_tinker_path": (TRAINER, [PATH]),
        "whoami": ("refused by the SDK: keys here are no JWTs", []),
    },
    "APIFuture": {
        "coroutine": (WORKS, []),
        "future": (WORKS, []),
        "result": (WORKS, [20.0]),
    },
}
METHODS = [(name, method) for name in CLASSES for method in public(name)]
# What ends the client that it is called on comes last.
METHODS.sort(key=lambda one: one[1] == "close")


@pytest.fixture(scope="module")
def gateway() -> Iterator[Served]:
    if install.NEWEST not in {made.version for made in combinations()}:
        pytest.skip(f"SDK {install.NEWEST} is not among SDKS")
    with (
        stand_in("--model", BASE, "--lora", "best") as url,
        under("uvicorn", url, models__adapters=f"{PATH}=best") as served,
    ):
        yield served


@pytest.fixture(scope="module")
def sdk(gateway: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sdk]:
    folder = tmp_path_factory.mktemp("tokenizers")
    write_tokenizer(folder / BASE)
    with sdk_process(
        PROGRAM, TINKER_BASE_URL=gateway.url, BASE_MODEL=BASE, TOKENIZERS=str(folder)
    ) as started:
        # Sessions and connections are there before requests are looked for.
        for warm in (("APIFuture", "result"), ("RestClient", "list_sessions")):
            called = started.ask("call", of=warm[0], method=warm[1], arguments=[])
            assert "error" not in called, called
        yield started


def write_tokenizer(folder: Path) -> None:
    """The smallest one that the SDK loads; the hub is not asked for what a folder has."""
    folder.mkdir(parents=True)
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    tokenizer = {"version": "1.0", "model": model, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def expected(name: str, method: str) -> tuple[str, Any]:
    of_class = EXPECTED[name]
    found = of_class.get(method) or of_class.get(method.removesuffix("_async"))
    assert found, f"{name}.{method} is new: say what comes of it"
    return found


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_every_public_method_has_its_verdict(
    sdk: Sdk, gateway: Served, methods: dict[str, dict[str, str]], name: str, method: str
) -> None:
    verdict, arguments = expected(name, method)
    if arguments is not None:
        traffic = Traffic(gateway)
        called = {"of": name, "method": method, "arguments": arguments}
        if isinstance(arguments, dict):
            called |= {"arguments": [], "keywords": arguments}
        answer = sdk.ask("call", **called)
        assert answer["seconds"] < AT_ONCE_S or method == "get_tokenizer", answer
        assert verdict_of(answer, traffic) == verdict, answer
    methods.setdefault(name, {})[method] = verdict


def verdict_of(answer: dict[str, Any], traffic: Traffic) -> str:
    if "error" not in answer:
        return WORKS if traffic.paths(*BACKGROUND) else LOCAL
    if answer["error"] == "RuntimeError" and "whoami requires JWT auth" in answer["message"]:
        return "refused by the SDK: keys here are no JWTs"
    assert answer["error"] == "UnprocessableEntityError", answer
    said = re.search(
        r"this gateway samples only; ([^(\"]*?) (needs a trainer|is not offered)", answer["message"]
    )
    assert said, answer
    return TRAINER if said[2] == TRAINER else f"refused: {said[0].partition('; ')[2]}"
