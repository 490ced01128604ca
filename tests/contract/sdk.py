"""The test's side of `sdk_program.py`, and what the right answers are."""

import contextlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from loadgen import answers
from loadgen.faults import Fault, fault_prompt_id
from tests.support.processes import Process, Served

PROGRAM = Path(__file__).with_name("sdk_program.py")
# Futures that are given up, clients that travel; knows the other's commands too.
FUTURES = ("-m", "tests.contract.futures_program")
WITHIN_S = 90.0
EOS = answers.VOCAB - 3
_ACCESS = re.compile(r'"(?P<method>[A-Z]+) (?P<path>\S+) HTTP/1\.1" (?P<status>\d{3})')


class Sdk:
    """A running SDK process; `ask` is one command and its answer."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._asked = 0

    def ask(self, do: str, **arguments: Any) -> Any:
        self.send(do, **arguments)
        return self.answer()

    def send(self, do: str, **arguments: Any) -> None:
        """A command whose answer is read later."""
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        self._asked += 1

    def answer(self) -> Any:
        """The answer to the last command."""
        self.process.wait_for(
            lambda: self.process.stdout.count("\n") >= self._asked, "answer", WITHIN_S
        )
        return json.loads(self.process.stdout.splitlines()[self._asked - 1])

    def sample(self, served: Served, prompt: list[int], **case: Any) -> dict[str, Any]:
        found = self.samples(served, [{"prompt": prompt, **case}])
        return found[0]

    def samples(
        self, served: Served, cases: list[dict[str, Any]], **more: Any
    ) -> list[dict[str, Any]]:
        """All at once."""
        found: list[dict[str, Any]] = self.ask("samples", base_url=served.url, cases=cases, **more)
        return found


@contextlib.contextmanager
def sdk_process(
    *program: str | Path, python: str | Path = sys.executable, **environ: str
) -> Iterator[Sdk]:
    """The SDK with a key and without telemetry, unless `environ` says otherwise.

    program: arguments of Python that start another program than `sdk_program.py`.
    """
    process = Process(
        [str(python), *map(str, program or [PROGRAM])],
        {"TINKER_API_KEY": "tml-test", "TINKER_TELEMETRY": "0", **environ},
        stdin=subprocess.PIPE,
    )
    try:
        yield Sdk(process)
    finally:
        process.close()


class Traffic:
    """What went over the gateway's socket since it was made: uvicorn's access log."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._skip = len(served.process.stdout)

    def _lines(self) -> Iterator[re.Match[str]]:
        return _ACCESS.finditer(self._served.process.stdout[self._skip :])

    def paths(self, *without: str) -> set[str]:
        """Those below /api/v1 that were asked for, but not these."""
        asked = {line["path"].partition("?")[0].removeprefix("/api/v1/") for line in self._lines()}
        return asked - set(without)

    def statuses(self, path: str) -> Counter[int]:
        """Of one path below /api/v1."""
        return Counter(
            int(line["status"]) for line in self._lines() if line["path"] == f"/api/v1/{path}"
        )


class Upstreamed:
    """Completions that reached the stand-in since it was made, by gateway request id."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._before = self._all()

    def _all(self) -> dict[str, int]:
        with urlopen(f"{self._url}/requests", timeout=5) as answer:
            ids: dict[str, int] = json.load(answer)
            return ids

    def counts(self) -> list[int]:
        """How often each new id came, oldest first."""
        return [count for id_, count in self._all().items() if id_ not in self._before]


def metrics(url: str) -> dict[str, float]:
    with urlopen(f"{url}/metrics", timeout=5) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line[:1] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def wait_until(found: Any, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def fault(kind: Fault, *more: int) -> list[int]:
    """A prompt that asks the stand-in for a fault."""
    return [fault_prompt_id(kind, answers.VOCAB), *more]


def right(sample: answers.Sample) -> tuple[list[int], list[float], str]:
    return sample.token_ids, sample.logprobs, sample.finish_reason


def got(sequence: dict[str, Any]) -> tuple[list[int], list[float], str]:
    """The same of a sequence that the SDK handed out."""
    return sequence["tokens"], sequence["logprobs"], sequence["stop_reason"]


def assert_right(
    answer: dict[str, Any], prompt: list[int], *, n: int = 1, **parameters: Any
) -> None:
    """Every choice is bit for bit what the stand-in gives for this prompt and these parameters."""
    assert "error" not in answer, answer
    assert len(answer["sequences"]) == n
    for choice, sequence in enumerate(answer["sequences"]):
        expected = answers.sample(prompt, choice=choice, **parameters)
        assert got(sequence) == right(expected)
        assert sequence["dtypes"] == ["int32", "float32"]
    assert len({sequence["sequence_id"] for sequence in answer["sequences"]}) == n
