"""A control group with a memory limit for one process, where the test may make one."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOTS = (
    # Version 1, then version 2: the folder, its limit, what counts kills.
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.oom_control"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.events"),
)


class Group:
    def __init__(self, folder: Path, kills: str) -> None:
        self.folder = folder
        self._kills = folder / kills

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command, started as a member of the group."""
        program = (
            "import os,sys;open(sys.argv[1],'w').write(str(os.getpid()));"
            "os.execv(sys.executable,[sys.executable,*sys.argv[2:]])"
        )
        procs = str(self.folder / "cgroup.procs")
        return [sys.executable, "-c", program, procs, *command]

    @property
    def killed(self) -> int:
        """Processes that the kernel killed for their memory."""
        for line in self._kills.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        raise AssertionError(f"{self._kills} counts no kills")


@contextlib.contextmanager
def limited_to(nbytes: int) -> Iterator[Group | str]:
    """A group with this limit; a reason where none can be made here."""
    reasons = []
    for root, limit, kills in ROOTS:
        folder = root / f"gateway-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
            continue
        try:
            try:
                (folder / limit).write_text(str(nbytes))
            except OSError as error:
                reasons.append(f"{folder / limit}: {error.strerror}")
                continue
            yield Group(folder, kills)
            return
        finally:
            folder.rmdir()
    yield "; ".join(reasons)
