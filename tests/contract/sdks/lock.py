"""Writes the locks of the older SDKs; run by `make sdk-locks`, needs uv.

    python -m tests.contract.sdks.lock [--upgrade]

Pins that a lock already has are kept; options are passed on to uv.
"""

import subprocess
import sys
from pathlib import Path

from tests.contract.sdks.install import LOCKS, OLDER

# What a release imports and does not ask for.
UNDECLARED = {"0.18.0": ("orjson",)}
COMPILE = (
    *("uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
    *("--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"),
    *("--custom-compile-command", "make sdk-locks"),
)


def lock(version: str, *options: str) -> Path:
    path = LOCKS / f"{version}.lock"
    wanted = "\n".join((f"tinker=={version}", *UNDECLARED.get(version, ())))
    subprocess.run([*COMPILE, *options, "-", "-o", path], input=wanted, text=True, check=True)
    return path


if __name__ == "__main__":
    for older in OLDER:
        print(lock(older, *sys.argv[1:]))
