"""docs/skyrl.md, both ways: before a SkyRL-like server, and around it, which FastAPI runs.

Its vLLM is in its database once it has a run. The real SDK trains, saves and samples.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from loadgen import answers
from tests.contract.train_and_sample_program import PROMPT
from tests.support.processes import (
    Process,
    Served,
    environment,
    free_port,
    process,
    server_command,
    stand_in,
)
from tests.support.programs import listens, stopped

pytestmark = [pytest.mark.servers, pytest.mark.sdk]

PROGRAM = Path(__file__).parents[1] / "contract" / "train_and_sample_program.py"
ADAPTERS = {"models__adapter_name": "{model_id}"}


@contextlib.contextmanager
def under_uvicorn(application: str, **environ: str) -> Iterator[Served]:
    port = free_port()
    with process(server_command("uvicorn", port, application=application), environ) as started:
        started.wait_for(lambda: listens(port), "listener")
        yield Served("uvicorn", port, started)


@contextlib.contextmanager
def before(database: Path, vllm: str) -> Iterator[tuple[Served, str, Process]]:
    """Two processes, one before the other: the gateway, the trainer's URL, the trainer."""
    theirs = {"TINKER_DB": str(database), "VLLM_URL": vllm}
    with under_uvicorn("tests.support.skyrl:create_app", **theirs) as trainer:
        command = [sys.executable, "-m", "asgi_gateway", "serve", "--port", "0"]
        told = environment(
            upstream__source=f"sqlite:///{database}", training__url=trainer.url, **ADAPTERS
        )
        with process(command, told) as started:
            port = int(started.first_line().rsplit(":", 1)[1])
            yield Served("serve", port, started), trainer.url, trainer.process


@contextlib.contextmanager
def around(database: Path, vllm: str) -> Iterator[tuple[Served, str, Process]]:
    """One process: the gateway around the trainer."""
    theirs = {"TINKER_DB": str(database), "VLLM_URL": vllm}
    told = environment(upstream__source=f"sqlite:///{database}", **ADAPTERS)
    with under_uvicorn(
        "examples.embed.around_trainer:create_app",
        TRAINER="tests.support.skyrl:create_app",
        **theirs,
        **told,
    ) as served:
        yield served, served.url, served.process


def asked(url: str) -> Any:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)


@pytest.mark.parametrize("way", [before, around])
def test_a_script_trains_and_samples_through_one_url(way: Any, tmp_path: Path) -> None:
    """No upstream is known at the start; every sample has the adapter of its run."""
    with (
        stand_in("--any-adapter") as vllm,
        way(tmp_path / "tinker.db", vllm) as (served, trainer, trainer_process),
    ):
        environ = {"TINKER_BASE_URL": served.url, "TINKER_API_KEY": "tml-test"}
        with process([sys.executable, str(PROGRAM)], environ) as started:
            assert started.wait(90) == 0, started.story()
            told = json.loads(started.stdout)["samples"]
        state = asked(f"{trainer}/debug/state")
        assert len(told) == 9
        for one in told:
            model = one.get("run", "stand-in")
            right = answers.sample(PROMPT, max_tokens=4, seed=7, model=model)
            assert one["tokens"] == right.token_ids, one
        assert [run["steps"] for run in state["runs"].values()] == [2, 2]
        assert "/api/v1/forward_backward" in state["paths"]
        assert "/api/v1/asample" not in state["paths"]
        assert asked(f"{served.url}/openapi.json")["info"]["title"] != "A SkyRL-like server"
        assert "Traceback" not in served.process.stderr, served.process.story()
        assert "trainer: stopped" in stopped(trainer_process)
