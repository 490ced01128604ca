"""What the kernel allows this process."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

# Version 2 and version 1, as a container sees its own limit.
CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
SOMAXCONN: Final = Path("/proc/sys/net/core/somaxconn")


def memory_limit_bytes(limit_files: Iterable[Path] = CGROUP_LIMITS) -> int:
    """The cgroup's memory limit where one is set, else the machine's physical memory, in bytes."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [physical]
    for path in limit_files:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return min(limits)


def accept_queue_limit(path: Path = SOMAXCONN) -> int | None:
    """The longest accept queue that `listen` gives; None where the kernel does not say."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
