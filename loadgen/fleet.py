"""The processes of a run: started together, let go together, and what they left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from loadgen import sdk
from loadgen.ledger import Merged
from loadgen.plan import Plan
from loadgen.selfcheck import Check
from loadgen.worker import Order, Progress

ROOT: Final = Path(__file__).resolve().parent.parent
READY_WITHIN_S: Final = 60.0
START_IN_S: Final = 0.2
LINE_CAP: Final = 1 << 20


class FleetError(Exception):
    """A process could not begin, or ended early; says which and why."""


class Member:
    """One worker process and what it said last."""

    def __init__(self, index: int, process: asyncio.subprocess.Process) -> None:
        self.index = index
        self.process = process
        self.progress = Progress(t=0.0, accepted=0, settled=0, failed=0, polls=0, cpu_s=0.0)
        self.ended = False

    def __repr__(self) -> str:
        return f"<Member {self.index} pid={self.process.pid}>"

    async def line(self) -> bytes:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).rstrip(b"\n")

    def tell(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")


class Fleet:
    """All members. `go` lets them start at one time; `ended` waits for the last."""

    def __init__(self, plan: Plan, folder: Path, members: list[Member]) -> None:
        self.plan = plan
        self.folder = folder
        self.members = members
        self.timeline: list[tuple[float, int, float]] = []
        self.start = 0.0
        self.versions: dict[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def pids(self) -> list[int]:
        return [member.process.pid for member in self.members]

    def total(self) -> Progress:
        """The last word of all, summed; `t` of the latest."""
        latest = [member.progress for member in self.members]
        sums = {
            name: sum(getattr(each, name) for each in latest)
            for name in ("accepted", "settled", "failed", "polls", "cpu_s")
        }
        return Progress(t=max(each.t for each in latest), **sums)

    async def go(self) -> None:
        """Have all start at the same time, a little later."""
        self.start = time.monotonic() + START_IN_S
        for member in self.members:
            member.tell(b"go %.6f" % self.start)

    def stop(self) -> None:
        """Have all end now, with what is open lost."""
        for member in self.members:
            if member.process.stdin is not None and not member.process.stdin.is_closing():
                member.process.stdin.close()

    async def changed(self, within_s: float) -> None:
        """Until somebody said something, or so long."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), within_s)

    async def listen(self) -> None:
        """Read everybody to the end. Raises FleetError where one ends without having ended."""
        async with asyncio.TaskGroup() as group:
            for member in self.members:
                group.create_task(self._listen(member))

    async def _listen(self, member: Member) -> None:
        while not member.ended:
            line = await member.line()
            if line == b"ended":
                member.ended = True
            elif line.startswith(b"{"):
                member.progress = msgspec.json.decode(line, type=Progress)
                total = self.total()
                self.timeline.append((total.t, total.polls, total.cpu_s))
            else:
                status = await member.process.wait()
                raise FleetError(f"process {member.index} ended with status {status}")
            self._changed.set()

    def merged(self) -> tuple[Merged, list[Check]]:
        """The ledgers as one, and everybody's self-check."""
        merged = Merged(self.plan.samples)
        checks = []
        for member in self.members:
            order = Order(plan=self.plan, process=member.index, folder=str(self.folder))
            if self.plan.style == "sdk":
                ledger, release = sdk.ledger(self.plan, member.index, self.folder)
                ledger.save(order.ledger)
                self.versions["tinker"] = release
            merged.add(order.ledger, member.index, self.plan.processes)
            checks.append(msgspec.json.decode(order.check.read_bytes(), type=Check))
        return merged, checks


@contextlib.asynccontextmanager
async def started(plan: Plan, folder: Path, sdk_python: str | None = None) -> AsyncIterator[Fleet]:
    """All processes, their handshakes done. They are gone afterwards, whatever happens.

    sdk_python: the interpreter that has the tinker package, this one unless given; style sdk only.

    Raises FleetError where one is not ready, with what it said.
    """
    members: list[Member] = []
    try:
        for index in range(plan.processes):
            if plan.style == "sdk":
                sdk.todo(plan, index, folder)
                command = [sdk_python or sys.executable, str(sdk.WORKER)]
            else:
                command = [sys.executable, "-m", "loadgen.worker"]
            members.append(Member(index, await _start(*command)))
            order = Order(plan=plan, process=index, folder=str(folder))
            members[-1].tell(msgspec.json.encode(order))
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                for member in members:
                    await _ready(member)
        except TimeoutError:
            raise FleetError(f"handshakes took more than {READY_WITHIN_S:g} s") from None
        yield Fleet(plan, folder, members)
    finally:
        for member in members:
            await _end(member)


async def _start(*command: str) -> asyncio.subprocess.Process:
    inherited = os.environ.get("PYTHONPATH")
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), inherited)))},
        limit=LINE_CAP,
        start_new_session=True,  # Ctrl-C is for the parent, which ends all in order
    )


async def _ready(member: Member) -> None:
    line = (await member.line()).decode("utf-8", "replace")
    if line != "ready":
        said = line.removeprefix("error ") or "it ended without a word"
        raise FleetError(f"process {member.index}: {said}")


async def _end(member: Member) -> None:
    """End of file, then SIGKILL."""
    process = member.process
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), 5.0 if member.ended else 0.5)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
