"""Processes as /proc shows them. Linux only; a process that has ended is None, not an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """One process, or the sum over several. cpu_s: user and system time since its start.

    waited_s: how long its first thread was ready to run and did not, for want of a core.
    descriptors is None where the process belongs to somebody else.
    """

    cpu_s: float
    waited_s: float
    rss_bytes: int
    descriptors: int | None
    threads: int


def usage(pid: int, proc: Path = PROC) -> Usage | None:
    """One process, without its children."""
    directory = proc / str(pid)
    try:
        # The name is in parentheses and may hold anything, spaces and parentheses too.
        fields = (directory / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        cpu_s = ticks / CLOCK_TICKS
        threads = int(fields[17])
        rss = int((directory / "statm").read_text().split()[1]) * PAGE_BYTES
        ran, waited = (directory / "schedstat").read_text().split()[:2]
        if threads == 1:
            cpu_s = int(ran) / 1e9  # nanoseconds rather than ticks, but of the first thread alone
    except (OSError, IndexError, ValueError):
        return None
    return Usage(cpu_s, int(waited) / 1e9, rss, descriptors(pid, proc), threads)


def descriptors(pid: int, proc: Path = PROC) -> int | None:
    """How many are open; None where we may not look."""
    try:
        return len(os.listdir(proc / str(pid) / "fd"))  # noqa: PTH208 - a path each costs at 20,000
    except OSError:
        return None


def tree(pid: int, proc: Path = PROC) -> list[int]:
    """The process and all it has started, directly or not, in order of pid."""
    found, unseen = {pid}, [pid]
    while unseen:
        parent = unseen.pop()
        try:
            tasks = list((proc / str(parent) / "task").iterdir())
        except OSError:
            continue
        for task in tasks:
            try:
                children = (task / "children").read_text().split()
            except OSError:
                continue
            new = set(map(int, children)) - found
            found |= new
            unseen += new
    return sorted(found)


def usage_of_tree(pid: int, proc: Path = PROC) -> Usage | None:
    """The sum over a process and its children; None where none of them is left."""
    parts = [part for each in tree(pid, proc) if (part := usage(each, proc)) is not None]
    if not parts:
        return None
    known = [part.descriptors for part in parts if part.descriptors is not None]
    return Usage(
        cpu_s=sum(part.cpu_s for part in parts),
        waited_s=sum(part.waited_s for part in parts),
        rss_bytes=sum(part.rss_bytes for part in parts),
        descriptors=sum(known) if len(known) == len(parts) else None,
        threads=sum(part.threads for part in parts),
    )
