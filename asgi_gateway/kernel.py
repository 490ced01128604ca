"""What the kernel allows this process."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

SOMAXCONN: Final = Path("/proc/sys/net/core/somaxconn")
PROC: Final = Path("/proc/self")


class MemoryFiles(msgspec.Struct, frozen=True):
    """A control group's memory: its limit in bytes, and where its use is read."""

    limit: int
    current: Path
    stat: Path


def physical_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_limit_bytes(proc: Path = PROC) -> int:
    """The lowest memory limit of the process's control groups, else the machine's, in bytes."""
    files = memory_files(proc)
    return physical_memory_bytes() if files is None else files.limit


def memory_files(proc: Path = PROC) -> MemoryFiles | None:
    """The group with the lowest memory limit on the process's own path, the nearest to the process
    where several have it; None where none has one below the machine's memory.

    A limit higher up counts the memory of neighbours too, and the kernel kills for it all the same.
    """
    lowest, physical = None, physical_memory_bytes()
    for group in _memory_groups(proc):
        for limit, current in _FILES:
            value = _number(group / limit)
            if value is None or not 0 < value < physical:  # absent, "max", or next to 2^63
                continue
            if lowest is None or value < lowest.limit:
                lowest = MemoryFiles(value, group / current, group / "memory.stat")
    return lowest


# Of version 2 and version 1: a limit, and what is used of it.
_FILES: Final = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def _memory_groups(proc: Path) -> Iterator[Path]:
    """Folders of the control groups that count the process's memory, the innermost first."""
    mounts = list(_mounts(proc))
    for line in _lines(proc / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        kind = "cgroup" if controllers else "cgroup2"
        for mounted, root, folder in mounts:
            if mounted != kind:
                continue
            # A container may see its own group mounted as the root and its path from the host's.
            inside = path if root == "/" else path.removeprefix(root)
            here = folder / inside.lstrip("/")
            if ".." in here.parts or not here.is_dir():
                here = folder
            yield here
            while here != folder:
                here = here.parent
                yield here


def _mounts(proc: Path) -> Iterator[tuple[str, str, Path]]:
    """Kind, root and mount point of the control groups' file systems that may count memory."""
    for line in _lines(proc / "mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kinds) < 3 or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        if kinds[0] == "cgroup" and "memory" not in kinds[2].split(","):
            continue
        yield kinds[0], fields[3], Path(fields[4])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def accept_queue_limit(path: Path = SOMAXCONN) -> int | None:
    """The longest accept queue that `listen` gives; None where the kernel does not say."""
    return _number(path)
