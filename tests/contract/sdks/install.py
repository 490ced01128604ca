"""Environments with one released tinker SDK each, installed from the locks beside this file.

    python tests/contract/sdks/install.py 0.18.2 0.25.0

They are kept outside the checkout, in the user's cache folder, and made anew when a lock changes.
Prints one `VERSION PYTHON` line each. The newest SDK is in the project's own environment.
"""

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


def interpreter(version: str) -> Path:
    """The Python that has this SDK; installs it at the first call.

    Raises:
        LookupError: a version without a lock.
        CalledProcessError: pip failed.
    """
    if version == NEWEST:
        return Path(sys.executable)
    lock = LOCKS / f"{version}.lock"
    if not lock.exists():
        raise LookupError(f"no lock for SDK {version}; there are {', '.join(OLDER)} and {NEWEST}")
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"sdk-{version}-py{sys.version_info.major}.{sys.version_info.minor}-{digest}"
    folder = cache / "asgi-gateway" / name
    python, done = folder / "bin" / "python", folder / ".installed"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [
                python,
                *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                *("--require-hashes", "-r", lock),
            ],
            check=True,
            stdout=sys.stderr,
        )
        done.touch()
    return python


if __name__ == "__main__":
    for wanted in sys.argv[1:] or (*OLDER, NEWEST):
        print(wanted, interpreter(wanted))
