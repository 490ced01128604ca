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

    A balance of bytes may go below zero with the last one admitted, as the SDK's does.
    """

    def __init__(self, places: int, balance: int) -> None:
        self.places = places
        self.balance = balance
        self.taken = 0
        self._rows: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: int) -> None:
        self._rows.append(row)

    def first(self, row: int) -> None:
        """Put a row back to the front."""
        self._rows.appendleft(row)

    def next(self) -> int | None:
        """The row whose turn it is, which then has a place; None where there is no room."""
        if self._rows and self.taken < self.places and self.balance >= 0:
            self.taken += 1
            return self._rows.popleft()
        return None

    def leave(self, cost: int) -> None:
        """Give a place and its bytes back."""
        self.taken -= 1
        self.balance += cost
