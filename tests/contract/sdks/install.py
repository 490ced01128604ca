"""Environments with one released tinker SDK each, installed from the locks beside this file.

    python tests/contract/sdks/install.py 0.18.2 0.25.0

They are kept outside the checkout, in the user's cache folder, and made anew when a lock changes.
Prints one `VERSION PYTHON` line each. The newest SDK is in the project's own environment.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

LOCKS = Path(__file__).parent
NEWEST = "0.38.0"
OLDER = tuple(
    sorted(
        (lock.stem for lock in LOCKS.glob("*.lock")),
        key=lambda version: [int(part) for part in version.split(".")],
    )
)
VERSIONS = (*OLDER, NEWEST)
DONE = ".installed"


def interpreter(version: str) -> Path:
    """The Python that has this SDK, once it is installed.

    Raises:
        LookupError: a version without a lock.
    """
    if version == NEWEST:
        return Path(sys.executable)
    return _folder(version) / "bin" / "python"


def installed(version: str) -> bool:
    return version == NEWEST or (_folder(version) / DONE).exists()


def install(version: str) -> None:
    """Make its environment where there is none for this lock; one process at a time does it.

    Raises:
        LookupError: a version without a lock.
        CalledProcessError: pip failed.
    """
    if version == NEWEST:
        return
    folder = _folder(version)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.busy").open("w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        if installed(version):
            return
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [
                interpreter(version),
                *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                *("--require-hashes", "-r", LOCKS / f"{version}.lock"),
            ],
            check=True,
            stdout=sys.stderr,
        )
        (folder / DONE).touch()


def _folder(version: str) -> Path:
    lock = LOCKS / f"{version}.lock"
    if not lock.exists():
        raise LookupError(f"no lock for SDK {version}; there are {', '.join(OLDER)} and {NEWEST}")
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return cache / "asgi-gateway" / f"sdk-{version}-{python}-{digest}"


if __name__ == "__main__":
    for wanted in sys.argv[1:] or VERSIONS:
        install(wanted)
        print(wanted, interpreter(wanted))
