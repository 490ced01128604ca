"""Where and with what a run was made."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import resource
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Final

from loadgen.results import Environment

_PACKAGES: Final = ("httptools", "msgspec", "numpy", "protobuf", "uvloop", "hdrhistogram")
_KERNEL_LIMITS: Final = {
    "somaxconn": "net/core/somaxconn",
    "port_range": "net/ipv4/ip_local_port_range",
    "file_max": "fs/file-max",
}
_GIT_WITHIN_S: Final = 5.0


def environment(command: str) -> Environment:
    """As it is now. command: as it was typed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = {"nofile": f"{soft} of {hard}"}
    for name, path in _KERNEL_LIMITS.items():
        with contextlib.suppress(OSError):
            limits[name] = " ".join(Path("/proc/sys", path).read_text().split())
    return Environment(
        started_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        command=command,
        loadgen=_version("asgi-gateway") or "unknown",
        python=platform.python_version(),
        kernel=platform.release(),
        machine=platform.machine(),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        load_before=round(os.getloadavg()[0], 2),
        git=_git(),
        limits=limits,
        versions={name: version for name in _PACKAGES if (version := _version(name))},
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _git() -> str | None:
    """The commit of the working folder, with a plus where files differ from it."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=_GIT_WITHIN_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
