"""What one process of a run has: its samples, its ledger, its samplers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from loadgen.ledger import Ledger
from loadgen.plan import Plan
from loadgen.samples import Samples
from loadgen.session import Api, Flags, Sampler

now: Final[Callable[[], float]] = time.monotonic


class Share:
    """Rows 0, 1, 2 ... are the samples number p, p + P, p + 2P ... of process p of P."""

    def __init__(
        self,
        plan: Plan,
        process: int,
        *,
        samples: Samples,
        ledger: Ledger,
        api: Api,
        flags: Flags,
        samplers: Sequence[Sampler],
    ) -> None:
        self.plan = plan
        self.process = process
        self.samples = samples
        self.ledger = ledger
        self.traffic = ledger.traffic
        self.api = api
        self.flags = flags
        self.samplers = samplers
        self.expected = samples.expect(range(process, plan.samples, plan.processes))

    def number(self, row: int) -> int:
        """The sample of a row, in the whole run."""
        return self.process + row * self.plan.processes

    def sampler(self, row: int) -> Sampler:
        return self.samplers[row % len(self.samplers)]

    def retried(self, name: str) -> None:
        """Count a repetition by its class; polls that reached their limit are counted besides."""
        self.ledger.retries[name] += 1


def rows_of(plan: Plan, process: int) -> int:
    """How many samples a process drives."""
    return len(range(process, plan.samples, plan.processes))


class Line:
    """Rows that wait for one of so many places and for bytes; both admit while not exhausted.

    A balance of bytes may go below zero with the last one admitted, as the SDK's does. `taken` and
    `balance` belong to the users of the line, who take and give back.
    """

    __slots__ = ("balance", "places", "rows", "taken")

    def __init__(self, places: int, balance: int) -> None:
        self.places = places
        self.balance = balance
        self.taken = 0
        self.rows: deque[int] = deque()

    def __repr__(self) -> str:
        return f"<Line {self.taken} of {self.places} taken, {len(self.rows)} waiting>"
