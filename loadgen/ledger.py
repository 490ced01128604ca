"""The ledger of one process: a row per sample, columns of numbers, exactly one outcome each."""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.outcomes import Traffic

OPEN: Final = 0
SUCCEEDED: Final = 1
_FIRST_NAMED: Final = 2
_TIMES: Final = ("planned", "sent", "accepted", "fetched", "done")


class Ledger:
    """What became of `count` samples. Times are of the monotonic clock, 0.0 where it never was.

    planned: when it was due. sent: its first submit's first byte. accepted: the submit that counted
    was answered. fetched: the request that brought its result was sent. done: its outcome.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.open = count
        self.accepted_count = 0
        self.failed = 0
        blank = bytes(8 * count)
        self.planned = array("d", blank)
        self.sent = array("d", blank)
        self.accepted = array("d", blank)
        self.fetched = array("d", blank)
        self.done = array("d", blank)
        self.outcome = array("H", bytes(2 * count))
        self.tokens = array("I", bytes(4 * count))
        self.digest = array("Q", blank)
        self.ids: list[list[str] | str | None] = [None] * count
        self.names: list[str] = ["open", "succeeded"]
        self.traffic = Traffic()
        self.retries: Counter[str] = Counter()
        self.delivered_again = 0
        self.problems: list[str] = []

    def __repr__(self) -> str:
        return f"<Ledger {self.count - self.open} of {self.count} settled>"

    def named(self, row: int, request_id: str) -> None:
        """The server gave this sample an id; after 410 it gets a further one."""
        known = self.ids[row]
        if known is None:
            self.ids[row] = request_id
        elif isinstance(known, str):
            if known != request_id:
                self.ids[row] = [known, request_id]
        elif request_id not in known:
            known.append(request_id)

    def succeed(self, row: int, tokens: int, digest: int, now: float) -> None:
        """The one good end of a sample."""
        if self.outcome[row] != OPEN:
            self.again(row, "succeeded")
            return
        self.outcome[row] = SUCCEEDED
        self.tokens[row] = tokens
        self.digest[row] = digest
        self.done[row] = now
        self.open -= 1

    def fail(self, row: int, name: str, now: float, detail: str = "", digest: int = 0) -> None:
        """Any other end. name: kind and detail as in Outcomes, such as "failed.server"."""
        if detail:
            self.problem(f"sample in row {row} {name}: {detail}")
        if self.outcome[row] != OPEN:
            self.again(row, name)
            return
        if name not in self.names:
            self.names.append(name)
        self.outcome[row] = self.names.index(name)
        self.failed += 1
        self.digest[row] = digest
        self.done[row] = now
        self.open -= 1

    def again(self, row: int, name: str) -> None:
        """A sample ended twice; the first end counts."""
        self.delivered_again += 1
        self.problem(f"sample in row {row} {name} after {self.names[self.outcome[row]]}")

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(text)

    def save(self, path: Path) -> None:
        """Write it for `load`: a header of JSON, then the columns."""
        self.traffic.retries = dict(self.retries)
        header = msgspec.json.encode(
            Header(
                count=self.count,
                names=self.names,
                traffic=self.traffic,
                delivered_again=self.delivered_again,
                problems=self.problems,
                ids=[[ids] if isinstance(ids, str) else ids or [] for ids in self.ids],
            )
        )
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little"))
            file.write(header)
            for name in _TIMES:
                getattr(self, name).tofile(file)
            for column in (self.outcome, self.tokens, self.digest):
                column.tofile(file)


PROBLEMS_KEPT: Final = 20


class Header(msgspec.Struct, kw_only=True):
    """What a saved ledger holds besides its columns. ids: of each sample, in order of issue."""

    count: int
    names: list[str]
    traffic: Traffic
    delivered_again: int
    problems: list[str]
    ids: list[list[str]]


class Merged:
    """The ledgers of all processes as one; columns by sample number, float64 seconds and integers.

    Only numbers below `count` exist; a process whose ledger is missing leaves its samples open.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.planned, self.sent, self.accepted, self.fetched, self.done = (
            np.zeros(count) for _ in _TIMES
        )
        self.outcome = np.zeros(count, np.uint16)
        self.tokens = np.zeros(count, np.uint32)
        self.digest = np.zeros(count, np.uint64)
        self.ids: list[list[str]] = [[] for _ in range(count)]
        self.names: list[str] = ["open", "succeeded"]
        self.traffic = Traffic()
        self.delivered_again = 0
        self.problems: list[str] = []

    def add(self, path: Path, process: int, processes: int) -> None:
        """Put the rows of one process in their places. Raises OSError where it left no file."""
        data = path.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        header = msgspec.json.decode(data[8:begin], type=Header)
        mine = slice(process, None, processes)
        offset = begin
        for name in _TIMES:
            column = np.frombuffer(data, np.float64, header.count, offset)
            getattr(self, name)[mine] = column
            offset += column.nbytes
        outcome = np.frombuffer(data, np.uint16, header.count, offset)
        tokens = np.frombuffer(data, np.uint32, header.count, offset + outcome.nbytes)
        last = offset + outcome.nbytes + tokens.nbytes
        self.tokens[mine] = tokens
        self.digest[mine] = np.frombuffer(data, np.uint64, header.count, last)
        self.names += [name for name in header.names if name not in self.names]
        codes = np.array([self.names.index(name) for name in header.names], np.uint16)
        self.outcome[mine] = codes[outcome]
        self.ids[mine] = header.ids
        self.traffic = add(self.traffic, header.traffic)
        self.delivered_again += header.delivered_again
        self.problems += header.problems[: PROBLEMS_KEPT - len(self.problems)]

    def named(self, name: str) -> npt.NDArray[np.bool_]:
        """Which samples ended so."""
        if name not in self.names:
            return np.zeros(self.count, np.bool_)
        return np.asarray(self.outcome == self.names.index(name))


def add(one: Traffic, other: Traffic) -> Traffic:
    """The sum of two, field by field."""
    sums = {
        field: getattr(one, field) + getattr(other, field)
        for field in Traffic.__struct_fields__
        if field != "retries"
    }
    return Traffic(**sums, retries=dict(Counter(one.retries) + Counter(other.retries)))
