"""The real SDK's training script with the proxy in between, which it must not notice."""

import json
import sys

import pytest

from tests.contract.test_trainer_stand_in import PROGRAM
from tests.support.processes import process
from tests.support.trainer import trainer
from tests.training.conftest import Front

HELD = ["--work-s", "0.25", "--hold-s", "0.1", "--compress"]


@pytest.mark.sdk
def test_a_script_trains_and_saves(uvicorn_front: Front) -> None:
    url = f"http://127.0.0.1:{uvicorn_front.port}"
    environ = {"TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-test"}
    with trainer(*HELD, port=uvicorn_front.trainer_port) as served:
        with process([sys.executable, str(PROGRAM)], environ) as program:
            assert program.wait(60) == 0, program.story()
            told = json.loads(program.stdout)
        state = served.state()
    assert told["sampled"] == "NotFoundError"
    assert len(told["checkpoints"]) == 2
    assert {run["passes"] for run in state["runs"].values()} == {0, 1, 2}
    headers = [dict(request["headers"]) for request in state["requests"]]
    assert {one["x-forwarded-host"] for one in headers} == {f"127.0.0.1:{uvicorn_front.port}"}
    assert {one["x-api-key"] for one in headers} == {"tml-test"}
