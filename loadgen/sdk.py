"""The poll style `sdk`: what its processes are given, and their records as a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from loadgen.ledger import Ledger
from loadgen.plan import Plan
from loadgen.samples import Samples, Vocabulary
from loadgen.schedule import planned_s
from loadgen.share import rows_of

WORKER: Final = Path(__file__).with_name("sdk_worker.py")


class Record(msgspec.Struct, array_like=True):
    """What became of a sample. detail: the digest of tokens and logprobs, or the error's text."""

    planned: float
    sent: float
    done: float
    outcome: str
    tokens: int
    logprobs: int
    digest: str
    detail: str


class Records(msgspec.Struct):
    """All of one process, by row, and the release that it drove."""

    sdk: str
    records: list[Record]


def todo(plan: Plan, process: int, folder: Path) -> None:
    """Write what each sample of a process is."""
    samples = Samples(plan)
    numbers = list(range(process, plan.samples, plan.processes))
    planned = None
    if plan.arrivals != "closed":
        planned = planned_s(plan)[process :: plan.processes].tolist()
    told: dict[str, Any] = {
        "numbers": numbers,
        "prompts": [samples.prompt_tokens[number] for number in numbers],
        "outputs": [samples.output_tokens[number] for number in numbers],
        "planned": planned,
        "concurrency": len(range(process, plan.concurrency, plan.processes)),
        "sessions": len(range(process, plan.sessions, plan.processes)),
        "first_id": Vocabulary.FIRST,
        "per_id": Vocabulary.COUNT,
        "third": samples.third,
        "filler": samples.filler_ids(),
    }
    (folder / f"{process}.todo").write_bytes(msgspec.json.encode(told))


def ledger(plan: Plan, process: int, folder: Path) -> tuple[Ledger, str]:
    """The records of a process as its ledger, and the release of the SDK.

    The SDK does not say when a sample was accepted; that column stays empty.
    """
    data = (folder / f"{process}.records").read_bytes()
    records = msgspec.json.decode(data, type=Records)
    samples = Samples(plan)
    made = Ledger(rows_of(plan, process))
    for row, record in enumerate(records.records):
        number = process + row * plan.processes
        made.planned[row], made.sent[row] = record.planned, record.sent
        if record.outcome == "succeeded":
            _judge(made, samples, row, number, record)
        elif record.outcome:
            made.fail(row, record.outcome, record.done, record.detail)
    return made, records.sdk


def _judge(made: Ledger, samples: Samples, row: int, number: int, record: Record) -> None:
    wrong = samples.differs(number, record.tokens, record.logprobs, record.digest, record.detail)
    digest = int.from_bytes(bytes.fromhex(record.detail), "little")
    if wrong is None:
        made.succeed(row, record.tokens, 0 if samples.knows else digest, record.done)
    else:
        made.fail(row, f"wrong.{wrong}", record.done, digest=digest)
