"""Our own commands as processes of their own, as users run them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def serving(*command: str, **environ: str) -> Iterator[str]:
    """Run `python -m command` until it says where it listens; yields that URL.

    Raises:
        AssertionError: it did not start, or did not exit 0 when it was told to stop.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ASGI_GATEWAY_")}
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=inherited | environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert " listening on http" in line, line or f"exit status {process.wait(10)}"
        yield line.split()[-1]
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
