"""The workflow under examples/ci: valid, and every command in it exists and takes its flags."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from asgi_gateway.__main__ import main as gateway
from loadgen.__main__ import parser
from loadgen.report.compare import share
from loadgen.report.figures import kind_of
from loadgen.report.thresholds import bounds
from loadgen.scenarios import SCENARIOS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/ci"
WORKFLOW: dict[Any, Any] = yaml.safe_load((FOLDER / "load.yml").read_text())
SERVER: str = WORKFLOW["env"]["SERVER"]


def steps() -> Iterator[dict[str, Any]]:
    for job in WORKFLOW["jobs"].values():
        yield from job["steps"]


def commands(name: str) -> Iterator[list[str]]:
    """The words after `name` wherever a step runs it, its variables filled in."""
    for step in steps():
        variables = {**WORKFLOW["env"], **step.get("env", {}), "GITHUB_STEP_SUMMARY": "s.md"}
        for line in step.get("run", "").splitlines():
            filled = line
            for variable in re.findall(r"\$([A-Z_]+)", line):
                filled = filled.replace(f"${variable}", variables[variable])
            words = shlex.split(filled.split(">>")[0].split("&&")[0])
            if words and Path(words[0]).name == name:
                yield words[1:]


def test_it_is_a_workflow() -> None:
    # YAML 1.1 reads the key `on` as true.
    assert set(WORKFLOW) == {"name", True, "permissions", "env", "jobs"}
    assert set(WORKFLOW["jobs"]) == {"smoke", "compare"}
    for job in WORKFLOW["jobs"].values():
        assert job["runs-on"]
        assert job["timeout-minutes"] <= 30
    for step in steps():
        assert ("uses" in step) != ("run" in step), step
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])


def test_its_shell_is_valid() -> None:
    for step in steps():
        if "run" in step:
            subprocess.run(["sh", "-n", "-c", step["run"]], check=True)


def test_every_command_of_ours_is_understood() -> None:
    found = list(commands("loadgen"))
    assert [words[0] for words in found] == ["run", "report", "compare"]
    for words in found:
        arguments = parser().parse_args(words)
        for figure in getattr(arguments, "figure", []):
            kind_of(figure)
        for bar in getattr(arguments, "bar", []):
            assert share(bar) == 0.1
        for side in ("command_a", "command_b"):
            command = getattr(arguments, side, None)
            if command:
                inner = shlex.split(command)
                assert Path(inner[0]).name == "loadgen"
                made = parser().parse_args(inner[1:])
                assert made.start.endswith(SERVER)
                assert made.json == Path("{json}")


def test_the_server_is_started_by_a_command_of_the_gateway(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *words = shlex.split(SERVER)
    assert name == "asgi-gateway"
    scripts = (ROOT / "pyproject.toml").read_text()
    assert f'{name} = "asgi_gateway.__main__:main"' in scripts
    assert 'loadgen = "loadgen.__main__:main"' in scripts
    with pytest.raises(SystemExit):
        gateway([words[0], "--help"])
    offered = capsys.readouterr().out
    for word in words:
        if word.startswith("--"):
            assert word in offered


def test_its_thresholds_can_be_judged_in_the_run_that_it_makes() -> None:
    words = next(commands("loadgen"))
    arguments = parser().parse_args(words)
    assert arguments.thresholds == [Path("examples/ci/thresholds.toml")]
    smoke = SCENARIOS[arguments.scenario].plan["samples"]
    found = bounds([], [FOLDER / "thresholds.toml"])
    assert {"failed", "lost", "doubled", "e2e.p99"} <= {bound.name for bound in found}
    assert smoke >= 200, "p95 needs 200 samples"


@pytest.mark.servers
def test_the_smoke_job_runs_as_it_stands(tmp_path: Path) -> None:
    words = next(commands("loadgen"))
    start = words.index("--start") + 1
    words[start] = f"{sys.executable} -m asgi_gateway" + words[start].removeprefix("asgi-gateway")
    words[words.index("--thresholds") + 1] = str(FOLDER / "thresholds.toml")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "loadgen", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    result = json.loads((tmp_path / "result.json").read_bytes())
    # A machine that is busy with other tests may be the limit; then it must say so.
    assert done.returncode in (0, 1, 3), done.stderr
    assert done.returncode == result["verdict"]["exit_status"]
    assert result["outcomes"]["succeeded"] == result["plan"]["samples"]
    assert len(result["verdict"]["thresholds"]) == 8
    assert (tmp_path / "result.html").read_text().startswith("<!doctype html>")
    assert "of 1,000 done" in done.stderr, "plain lines where there is no terminal"
