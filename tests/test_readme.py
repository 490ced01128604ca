"""The newcomer's path: `make run`, the README's snippet pasted unchanged, Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import free_port

ROOT = Path(__file__).parent.parent
SNIPPET = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)[0]


class Running:
    """examples/run_local.py, which is what `make run` runs."""

    def __init__(self, port: int, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "examples/run_local.py", "--port", str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": str(folder)},
        )
        assert self.process.stdout is not None
        self.said: list[str] = []
        for line in self.process.stdout:
            self.said.append(line)
            if line.startswith("Ctrl-C"):
                break
        self.ready_s = time.monotonic() - self.began

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(free_port(), tmp_path_factory.mktemp("state"))
    yield made
    if made.process.poll() is None:
        made.process.send_signal(signal.SIGINT)
        made.process.wait(20)
    assert made.process.stdout is not None
    made.process.stdout.close()


@pytest.mark.servers
def test_it_is_ready_soon_and_says_where(running: Running) -> None:
    assert running.ready_s < 10
    said = "".join(running.said)
    assert f"gateway  {running.url}" in said
    assert f"TINKER_BASE_URL={running.url}" in said
    assert SNIPPET in said


@pytest.mark.sdk
def test_the_snippet_prints_tokens_and_logprobs(running: Running) -> None:
    done = subprocess.run(
        [sys.executable, "-"],
        input=SNIPPET,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "TINKER_BASE_URL": running.url, "TINKER_API_KEY": "tml-local"},
    )
    # The SDK's native transport may abort at the very end of a process, with all said and done.
    assert done.returncode in (0, -signal.SIGABRT), done.stderr
    first, second, scores = done.stdout.splitlines()
    for line in (first, second):
        assert re.fullmatch(r"length \[(\d+, ){15}\d+\] \[(-[\d.e-]+, ){15}-[\d.e-]+\]", line)
    assert first != second
    assert re.fullmatch(r"\[None(, -[\d.e-]+){4}\]", scores)


@pytest.mark.servers
def test_ctrl_c_stops_both_and_leaves_nothing(running: Running) -> None:
    children = running.children()
    assert len(children) == 2
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(20) == 0
    for pid in children:
        assert not Path(f"/proc/{pid}").exists()
