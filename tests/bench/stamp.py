"""Where a report was made: without it no two reports can be compared."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    "aiohttp",
    "httptools",
    "msgspec",
    "numpy",
    "protobuf",
    "pysimdjson",
    "uvicorn",
    "uvloop",
)


def environment() -> dict[str, Any]:
    """load: of the last minute, when this was called; a busy machine explains a bad figure."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "load": round(os.getloadavg()[0], 2),
    }


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The kernel's name of the CPU; the machine's architecture where there is none."""
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _git(*arguments: str) -> str | None:
    """None where this is no checkout, or there is no git."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
