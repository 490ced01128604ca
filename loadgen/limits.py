"""What this machine allows: descriptors, ports, backlog and memory, from /proc and /sys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

CAP_SYS_RESOURCE: Final = 24
"""Without it nobody raises a hard limit, root neither; containers often lack it."""

UNLIMITED: Final = 1 << 62


class ServerLimits(NamedTuple):
    """Of one process. `soft` counts: a server need not raise it by itself."""

    pid: int
    soft: int
    hard: int
    open_now: int


class Limits(NamedTuple):
    """Descriptors per process, ports per source address, backlog per listener, memory in bytes.

    nofile: the hard limit of this process; the client raises its own soft limit. nr_open: what a
    hard limit may be raised to, where `can_raise` it at all. memory: what may still be allocated,
    by the machine and by this process's control group.
    """

    nofile: int
    nr_open: int
    can_raise: bool
    ports: int
    somaxconn: int
    memory: int
    server: ServerLimits | None = None


class NoSuchProcess(Exception):
    """The pid is nobody's, or somebody else's."""


def read_limits(server_pid: int | None = None, root: Path = Path("/")) -> Limits:
    """Raises NoSuchProcess, and OSError where there is no /proc."""
    sysctl = root / "proc/sys"
    low, high = map(int, (sysctl / "net/ipv4/ip_local_port_range").read_text().split())
    reserved = _text(sysctl / "net/ipv4/ip_local_reserved_ports")
    _, hard = _nofile(root / "proc/self/limits")
    return Limits(
        nofile=hard,
        nr_open=int((sysctl / "fs/nr_open").read_text()),
        can_raise=_can_raise((root / "proc/self/status").read_text()),
        ports=high - low + 1 - _reserved(reserved, low, high),
        somaxconn=int((sysctl / "net/core/somaxconn").read_text()),
        memory=_memory(root),
        server=None if server_pid is None else _server(server_pid, root),
    )


def _server(pid: int, root: Path) -> ServerLimits:
    directory = root / "proc" / str(pid)
    try:
        soft, hard = _nofile(directory / "limits")
        return ServerLimits(pid, soft, hard, sum(1 for _ in (directory / "fd").iterdir()))
    except OSError as error:
        raise NoSuchProcess(f"--server-pid {pid}: {error.strerror}") from error


def _nofile(path: Path) -> tuple[int, int]:
    """Soft and hard limit of descriptors in a file like /proc/self/limits."""
    found = re.search(r"^Max open files\s+(\S+)\s+(\S+)", path.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{path}: no line about open files")
    soft, hard = (UNLIMITED if word == "unlimited" else int(word) for word in found.groups())
    return soft, hard


def _can_raise(status: str) -> bool:
    """By the bounding set: what sudo could have, too."""
    found = re.search(r"^CapBnd:\s*([0-9a-f]+)", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> CAP_SYS_RESOURCE & 1)


def _reserved(text: str, low: int, high: int) -> int:
    """How many ports of the range are kept from it; as in "8080,9000-9100"."""
    count = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        count += max(0, min(high, int(last or first)) - max(low, int(first)) + 1)
    return count


def _memory(root: Path) -> int:
    meminfo = (root / "proc/meminfo").read_text()
    found = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE)
    left = [int(found[1]) * 1024] if found else []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            left += _room(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            left += _room(root / "sys/fs/cgroup/memory", path, *names)
    return min(left, default=UNLIMITED)


def _room(top: Path, path: str, limit_name: str, used_name: str) -> list[int]:
    """What each group from this one up leaves; nothing where none has a limit.

    Inside a container the path is often that of the host, and the group's files are at the top.
    """
    here = top / path.strip("/")
    groups = [here, *here.parents]
    found = []
    for group in groups[: groups.index(top) + 1]:
        limit, used = _text(group / limit_name), _text(group / used_name)
        if limit.isdigit() and used.isdigit() and int(limit) < UNLIMITED:
            found.append(max(0, int(limit) - int(used)))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
