"""Running targets: cases by number, findings kept, a row each."""

import json
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from tests.fuzz.answers import Answers
from tests.fuzz.lines import Lines
from tests.fuzz.names import Names
from tests.fuzz.prompts import Prompts
from tests.fuzz.requests import Requests
from tests.fuzz.results import Results
from tests.fuzz.target import Target
from tests.fuzz.wire import Wire

TARGETS: Final[dict[str, type[Target]]] = {
    kind.name: kind for kind in (Requests, Prompts, Answers, Wire, Results, Names, Lines)
}
CORPUS: Final = Path(__file__).parent / "corpus"
MAX_FINDINGS: Final = 20


class Finding(msgspec.Struct):
    """`number` makes the case again: `python -m tests.fuzz --target T --seed S --only N`."""

    number: int
    case: str
    error: str


class Row(msgspec.Struct):
    """What a target came to; `slowest_s` is the longest of its checks."""

    target: str
    seed: int
    cases: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    kinds: dict[str, int] = {}
    findings: list[Finding] = []
    found: int = 0

    def add(self, other: "Row") -> None:
        """Of a part of the same run, in another process."""
        self.cases += other.cases
        self.seconds += other.seconds
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.kinds = dict(Counter(self.kinds) + Counter(other.kinds))
        self.findings = (self.findings + other.findings)[:MAX_FINDINGS]
        self.found += other.found


def run(name: str, seed: int, numbers: range) -> Row:
    """Make and check the cases of these numbers."""
    target, row = TARGETS[name](), Row(name, seed)
    kinds: Counter[str] = Counter()
    target.open()
    began = time.perf_counter()
    try:
        for number in numbers:
            # Text, whose hash is the same in every process.
            case = target.make(Random(f"{seed} {name} {number}"))
            started = time.perf_counter()
            try:
                kinds[target.check(case)] += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, it was found
                row.found += 1
                if len(row.findings) < MAX_FINDINGS:
                    text = "".join(traceback.format_exception(error, limit=-2))
                    row.findings.append(Finding(number, repr(case), text))
            row.slowest_s = max(row.slowest_s, time.perf_counter() - started)
    finally:
        row.cases, row.seconds = len(numbers), time.perf_counter() - began
        row.kinds = dict(kinds)
        target.close()
    return row


def corpus(name: str) -> list[bytes]:
    """The kept cases of a target: each once found something, or is the least of its kind."""
    path = CORPUS / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line).encode("latin-1") for line in lines]
