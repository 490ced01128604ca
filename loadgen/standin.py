"""The stand-in vLLM of a run, as its client sees it: open the barrier, ask what it was asked."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from loadgen.address import Address, address
from loadgen.counts import Counted
from loadgen.faults import Fault
from loadgen.measure import Hit
from loadgen.results import FaultCount
from loadgen.script import name_of

ANSWER_WITHIN_S: Final = 60.0


class StandInError(Exception):
    """It did not answer as a stand-in does."""


class StandIn:
    """`url` is where it listens."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._where = address(url)

    def __repr__(self) -> str:
        return f"<StandIn {self.url}>"

    async def release(self) -> None:
        """Open its barrier."""
        await ask(self._where, b"POST /release")

    async def hits(self) -> Hit:
        """What it recorded of each request id: a count, when first asked, when last answered."""
        told: dict[str, list[float]] = msgspec.json.decode(await ask(self._where, b"GET /hits"))
        return Hit({name: (int(hit[0]), hit[1], hit[2]) for name, hit in told.items()})

    async def faulted(self) -> dict[str, list[str]]:
        """The faults it gave, by request id, named as in scripts."""
        told: dict[str, list[str]] = msgspec.json.decode(await ask(self._where, b"GET /faulted"))
        return {i: [name_of(Fault[kind]) for kind in kinds] for i, kinds in told.items()}

    async def counts(self) -> Counted:
        """All its counters, those of every process of it together."""
        return msgspec.json.decode(await ask(self._where, b"GET /counts"), type=Counted)

    async def metrics(self) -> dict[str, float]:
        """Its /metrics, by name and labels."""
        return exposition((await ask(self._where, b"GET /metrics")).decode())


def injected(before: Counted, after: Counted) -> list[FaultCount]:
    """The faults given between two looks, named as in scripts; what came of them is for others."""
    return [
        FaultCount(kind=name_of(Fault[kind]), injected=count - before.faults.get(kind, 0))
        for kind, count in sorted(after.faults.items())
        if count > before.faults.get(kind, 0)
    ]


def exposition(text: str) -> dict[str, float]:
    """Prometheus text as name and labels to value."""
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line[:1] not in ("", "#"))
    return {name: float(value) for name, value in pairs}


async def ask(where: Address, line: bytes) -> bytes:
    """The body of one answer on a connection of its own. line: method and path.

    Raises StandInError for anything but a 200 with a length.
    """
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(where.host, where.port)
            method, path = line.split(b" ")
            writer.write(
                b"%b %b%b HTTP/1.1\r\nhost: %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                % (method, where.prefix, path, where.host.encode())
            )
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.read()
            writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise StandInError(f"{line.decode()} at port {where.port}: {error!r}") from error
    if head.split(b" ", 2)[1:2] != [b"200"]:
        raise StandInError(f"{line.decode()} at port {where.port}: {head[:100]!r}")
    return body
