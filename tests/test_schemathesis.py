"""The schemathesis command over /openapi.json of a real gateway, the stand-in vLLM behind it."""

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT, serve, stand_in

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None,
    reason="schemathesis is not installed; it comes with the test dependencies (make setup)",
)

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
CONFIGURATION = """
[generation]
deterministic = true
max-examples = 60

[[operations]]
include-path = "/api/v1/asample"
generation.max-examples = 150
"""
ADAPTER, CHECKPOINT = "run_step", "tinker://run/sampler_weights/step"
ASAMPLE = "POST /api/v1/asample"


class Service:
    """A gateway to be asked without a key."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, route: str, body: object) -> dict[str, Any]:
        url = f"{self.url}/api/v1/{route}"
        with urllib.request.urlopen(url, json.dumps(body).encode()) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path) as response:
            body: bytes = response.read()
        return body

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 20
        while not self._ready():
            assert time.monotonic() < deadline, "not ready within 20 s"
            time.sleep(0.05)

    def _ready(self) -> bool:
        try:
            self.get("/readyz")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        return True

    def known(self) -> dict[str, dict[str, str]]:
        """What the hooks feed: fields of bodies, and ids in paths."""
        session_id = self.post("create_session", {})["session_id"]
        fields = {"session_id": session_id, "base_model": "stand-in", "model_path": CHECKPOINT}
        made = self.post("create_sampling_session", {"sampling_session_seq_id": 0, **fields})
        sampler = made["sampling_session_id"]
        api, spare = "GET /api/v1", self.post("create_session", {})["session_id"]
        return {
            "fields": {**fields, "tinker_path": CHECKPOINT, "sampling_session_id": sampler},
            "ids": {
                f"{api}/samplers/{{id}}": sampler,
                f"{api}/sessions/{{id}}": session_id,
                "POST /api/v1/sessions/{id}/finish": spare,
                f"{api}/training_runs/{{id}}": "run",
                f"{api}/training_runs/{{id}}/checkpoints": "run",
            },
        }


@pytest.fixture
def service() -> Iterator[Service]:
    with (
        stand_in("--max-model-len", "4096", "--lora", ADAPTER) as upstream,
        serve(upstream, poll__hold_s=0.1) as served,
    ):
        service = Service(served.url)
        service.wait_until_ready()
        yield service


@pytest.mark.timeout(300)
def test_a_run_finds_nothing_and_half_of_its_samples_are_accepted(
    service: Service, tmp_path: Path
) -> None:
    seen = tmp_path / "seen.jsonl"
    configuration = tmp_path / "schemathesis.toml"
    configuration.write_text(CONFIGURATION)
    run = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration)),
            *("run", f"{service.url}/openapi.json", "--no-color"),
            *("--phases", "coverage,fuzzing,stateful", "--checks", ",".join(CHECKS)),
        ],
        cwd=tmp_path,  # it leaves a cache where it runs
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks",
            "SCHEMATHESIS_FED": json.dumps(service.known()),
            "SCHEMATHESIS_SEEN": str(seen),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    cases = [json.loads(line) for line in seen.read_text().splitlines()]
    broken = [c for c in cases if c["status"] >= 500 and c["operation"] != "GET /readyz"]
    assert not broken
    assert b"\nasgi_gateway_bugs_total 0\n" in service.get("/metrics")
    samples = Counter(
        c["status"] for c in cases if c["operation"] == ASAMPLE and c["method"] == "POST"
    )
    print(f"{len(cases)} cases; asample by status: {dict(samples)}")
    assert samples[200] * 2 >= samples.total()
    answered = {c["operation"] for c in cases if c["status"] == 200}
    described = {
        f"{method.upper()} {path}"
        for path, methods in json.loads(service.get("/openapi.json"))["paths"].items()
        for method in methods
    }
    # The command leaves the document itself out, and does not find out how to confirm an action.
    actions = {"POST /admin/drain", "POST /admin/upstream"}
    assert answered == described - {"GET /openapi.json"} - actions


def test_the_document_is_valid_openapi(service: Service) -> None:
    code = (
        "import schemathesis, sys;"
        "schemathesis.openapi.from_url(sys.argv[1] + '/openapi.json').validate()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, service.url], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
