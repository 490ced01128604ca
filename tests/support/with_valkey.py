"""A command with a Valkey or Redis server of its own, as the shared store of gateways it starts.

python -m tests.support.with_valkey COMMAND...
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.valkey import valkey


def main(command: list[str]) -> int:
    """The command's exit status."""
    with tempfile.TemporaryDirectory() as folder, valkey(Path(folder)) as server:
        environ = {**os.environ, "ASGI_GATEWAY_STORE__URL": server.url}
        return subprocess.run(command, env=environ, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
